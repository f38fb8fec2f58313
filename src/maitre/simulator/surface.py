"""The schedules of all cells, each replayed once.

All requests are there at once, so the schedule of a cell does not depend on how long steps take, and every set of
coefficients of the step time costs one dot product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from maitre.recording import StepRecord
from maitre.records import Cell, Flags, ServerConfig, Workload
from maitre.simulator.replay import Replay, replay_at_once
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.step_time import StepTime, step_features
from maitre.vllm.defaults import capture_sizes

FIRST_STEP = ("num_prefills", "prefill_tokens", "num_decodes")
"""What the first step of a run has to share with the replay to be the same."""

Factors = Callable[[Cell], NDArray[np.float64]]


def no_factors(_: Cell) -> NDArray[np.float64]:
    """All cells have the flags that the step time was made for."""
    return np.ones(7)


class ReplayedSurface:
    """Replays each cell once, and hands out the sums that the step time's coefficients are multiplied by."""

    def __init__(
        self,
        workload: Workload,
        server: ServerConfig,
        step_time: StepTime,
        num_gpu_blocks: Callable[[Cell], int],
        *,
        started_at: Cell | None = None,
        factors: Factors = no_factors,
    ) -> None:
        """Prepare; a cell is replayed when it is first asked for.

        Args:
            workload: the requests, all there at once.
            server: its scheduler's settings; the dials are taken from each cell.
            step_time: its coefficients; the CUDA graphs are taken from each cell.
            num_gpu_blocks: the KV pool at a cell.
            started_at: the dials that the server was started with, where they are turned live: its CUDA graphs are
                captured for these; None when it is started afresh for every cell.
            factors: by what the coefficients of the step time are multiplied at a cell with other flags.
        """
        self.workload = workload
        self._step_time = step_time
        self._server = server
        self._believed_num_gpu_blocks = num_gpu_blocks
        self._pool_error: dict[Flags, int] = {}
        self._started_at = started_at
        self.factors = factors
        self._replays: dict[tuple[Cell, int], Replay] = {}
        self._sums: dict[tuple[Cell, int], NDArray[np.float64]] = {}

    def replay(self, cell: Cell) -> Replay:
        """The schedule of the whole workload.

        Raises:
            DoesNotFitError: a request is larger than the KV pool.
        """
        key = cell, self._num_gpu_blocks(cell)  # the pool of other flags is known only after their first start
        if key not in self._replays:
            self._replays[key] = replay_at_once(self.workload, self.rules(cell))
        return self._replays[key]

    def learn_pool(self, cell: Cell, steps: StepRecord) -> bool:
        """Correct the KV pool of all cells with the same flags by what a run shows; returns whether it was wrong.

        Where the first step is the one that was foretold, the blocks that it leaves free tell the pool's size.
        """
        columns = self.replay(cell).columns
        if "num_free_blocks" not in steps.columns or not steps.num_steps:
            return False
        if any(columns[name][0] != steps.columns[name][0] for name in FIRST_STEP):
            return False
        error = int(steps.columns["num_free_blocks"][0] - columns["num_free_blocks"][0])
        self._pool_error[cell.flags] = self._pool_error.get(cell.flags, 0) + error
        return error != 0

    def _num_gpu_blocks(self, cell: Cell) -> int:
        return self._believed_num_gpu_blocks(cell) + self._pool_error.get(cell.flags, 0)

    def rules(self, cell: Cell) -> SchedulerRules:
        """The scheduler's settings at a cell."""
        return SchedulerRules.of_server(self._server.at(cell), self._num_gpu_blocks(cell))

    def step_time(self, cell: Cell, coefficients: NDArray[np.float64] | None = None) -> StepTime:
        """The step time at a cell: with the CUDA graphs that the server has there, and what its flags change.

        Args:
            cell: the dials.
            coefficients: others than those of the beginning, shape (7,).
        """
        theta = self._step_time.coefficients if coefficients is None else coefficients
        return self._with_graphs(cell).with_coefficients(theta * self.factors(cell))

    def features(self, cells: Sequence[Cell]) -> NDArray[np.float64]:
        """What each coefficient is multiplied by over the whole run of each cell, shape (cells, 7)."""
        return np.stack([self._sum(cell) for cell in cells])

    def _sum(self, cell: Cell) -> NDArray[np.float64]:
        key = cell, self._num_gpu_blocks(cell)
        if key not in self._sums:
            self._sums[key] = self.step_features(cell).sum(axis=0)
        return self._sums[key]

    def step_features(self, cell: Cell) -> NDArray[np.float64]:
        """The same in each step of a cell, shape (steps, 7)."""
        return self.replay(cell).features(self._with_graphs(cell)) * self.factors(cell)

    def features_until(self, cell: Cell, num_output_tokens: float) -> NDArray[np.float64]:
        """The same until the decodes have made so many output tokens, shape (7,)."""
        num_decodes = self.replay(cell).columns["num_decodes"]
        num_steps = int(np.searchsorted(np.cumsum(num_decodes), num_output_tokens)) + 1
        sums: NDArray[np.float64] = self.step_features(cell)[:num_steps].sum(axis=0)
        return sums

    def features_of(self, cell: Cell, steps: StepRecord) -> NDArray[np.float64]:
        """What each coefficient is multiplied by in each measured step, shape (steps, 7)."""
        step_time = self._with_graphs(cell)
        return step_features(steps.columns, step_time.knee, step_time.graph_sizes) * self.factors(cell)

    def _with_graphs(self, cell: Cell) -> StepTime:
        sizes = capture_sizes(self._server.vllm_version, self._started_at or cell)
        return self._step_time.model_copy(update={"graph_sizes": sizes})
