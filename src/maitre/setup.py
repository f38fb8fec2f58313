"""What is to be served, on what: the KV pool of every cell, and what no setting can pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from maitre.errors import DoesNotFitError, InputError
from maitre.gpus import Gpu
from maitre.kv_budget import estimate_kv_budget, kv_budget_from_blocks
from maitre.limits import physical_limits
from maitre.models import Model
from maitre.records import Cell, KvBudget, Limits, ServerConfig, Trial, Workload


@dataclass(frozen=True, slots=True)
class Setup:
    """A model on a GPU with vLLM's flags."""

    server: ServerConfig
    """With the dials of the present setting."""
    model: Model
    gpu: Gpu
    num_gpu_blocks: int | None = None
    """The KV pool of every cell, if the user knows it; else it is estimated for each cell."""

    def kv_budget(self, cell: Cell) -> KvBudget:
        """The KV pool at one cell.

        Raises:
            DoesNotFitError: the model leaves no room for a pool.
        """
        if self.num_gpu_blocks is None:
            return estimate_kv_budget(self.model, self.gpu, self.server.at(cell))
        config, num_gpu_blocks = self.server.at(cell), self.num_gpu_blocks
        if cell.flags:
            num_gpu_blocks = round(num_gpu_blocks * self.pool_ratio(cell))
        return kv_budget_from_blocks(
            num_gpu_blocks,
            config.block_size,
            self.model,
            kv_cache_dtype=config.kv_cache_dtype,
            tensor_parallel_size=config.tensor_parallel_size,
            dtype=config.dtype,
        )

    def pool_ratio(self, cell: Cell) -> float:
        """How much larger the flags of a cell make the KV pool, in blocks, as it is estimated.

        Raises:
            DoesNotFitError: one of the two leaves no room for a pool.
        """
        plain = self.server.at(cell.model_copy(update={"flags": ()}))
        with_flags = estimate_kv_budget(self.model, self.gpu, self.server.at(cell))
        return with_flags.num_gpu_blocks / estimate_kv_budget(self.model, self.gpu, plain).num_gpu_blocks

    def kv_budgets(self, cells: Sequence[Cell]) -> tuple[dict[Cell, KvBudget], dict[Cell, DoesNotFitError]]:
        """The KV pools, and the cells that leave no room for one.

        Raises:
            DoesNotFitError: of the present cell, or of all.
        """
        budgets, infeasible = {}, {}
        for cell in dict.fromkeys(cells):
            try:
                budgets[cell] = self.kv_budget(cell)
            except DoesNotFitError as error:
                infeasible[cell] = error
        if not budgets or self.server.cell in infeasible:
            raise infeasible[self.server.cell]
        return budgets, infeasible

    def limits(self, workload: Workload, budgets: dict[Cell, KvBudget], trials: Sequence[Trial]) -> Limits:
        """What no setting can pass, with all requests at once."""
        largest = max(budgets.values(), key=lambda budget: budget.kv_tokens)
        most_slots = max(cell.max_num_seqs for cell in budgets)
        tensor_parallel_size = self.server.tensor_parallel_size
        limits = physical_limits(workload, self.model, self.gpu, largest, most_slots, tensor_parallel_size)
        best = max(trial.total_tokens_per_s for trial in trials)
        return limits.model_copy(update={"best_simulated_tokens_per_s": best})


def check_lengths(workload: Workload, server: ServerConfig) -> None:
    """Whether the server takes every request.

    Raises:
        InputError: some are longer than its max_model_len.
    """
    lengths = workload.prompt_tokens + workload.output_tokens
    num_refused = int(np.count_nonzero(lengths > server.max_model_len))
    if num_refused:
        raise InputError(
            f"{num_refused} of {workload.num_requests} requests are longer than max_model_len "
            f"({server.max_model_len} tokens; the longest has {lengths.max()}), and vLLM would refuse them",
            "raise --max-model-len, or leave these requests out of the workload",
        )
