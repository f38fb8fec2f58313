"""The whole method on one page: workload and server → KV budget → engine → surface → recommendation → study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maitre import __version__
from maitre.calibration import calibration_for
from maitre.errors import DoesNotFitError, InputError, SystemFailure
from maitre.gpus import Gpu
from maitre.kv_budget import estimate_kv_budget, kv_budget_from_blocks
from maitre.limits import physical_limits
from maitre.models import Model
from maitre.records import Cell, FailedTrial, KvBudget, Limits, ServerConfig, Study, Trial, Workload
from maitre.search import find_doubts, recommend
from maitre.trial import Engine, RecordedEngine, SimulatedEngine, TrialFailure

if TYPE_CHECKING:
    from maitre.trial.live import LiveEngine

NUM_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Setup:
    """What is to be served, on what."""

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
        if self.num_gpu_blocks is not None:
            return kv_budget_from_blocks(
                self.num_gpu_blocks,
                self.server.block_size,
                self.model,
                kv_cache_dtype=self.server.kv_cache_dtype,
                tensor_parallel_size=self.server.tensor_parallel_size,
                dtype=self.server.dtype,
            )
        return estimate_kv_budget(self.model, self.gpu, self.server.at(cell))


def tune_simulated(
    workload: Workload,
    setup: Setup,
    cells: Sequence[Cell],
    *,
    open_loop: bool = False,
    epsilon: float = 0.02,
    delta: float = 0.05,
    seed: int = 0,
    on_trial: Callable[[Trial], None] = lambda _: None,
) -> Study:
    """Predict the surface with the simulator, and recommend a cell.

    Args:
        workload: the traffic.
        setup: what is to be served, on what; its dials are the present setting, which is tried too.
        cells: the grid.
        open_loop: requests come at the workload's own times instead of all at once.
        epsilon: cells within this share of the best are equally good.
        delta: how sure to be.
        seed: of the draws that carry the calibration's uncertainty.
        on_trial: is told of every finished trial.

    Raises:
        InputError: requests that the server would refuse.
        DoesNotFitError: no cell leaves room for the KV pool.
    """
    _check_lengths(workload, setup.server)
    present = setup.server.cell
    budgets, infeasible = _kv_budgets(setup, [*cells, present])
    per_token = next(iter(budgets.values())).kv_bytes_per_token or 0
    calibration = calibration_for(setup.model, setup.gpu, setup.server, per_token)
    engine = SimulatedEngine(
        workload, setup.server, calibration, lambda cell: budgets[cell].num_gpu_blocks, open_loop=open_loop
    )
    trials = _run(engine, list(budgets), infeasible, on_trial)
    return _conclude(
        engine, trials, setup.server, workload,
        gpu=setup.gpu.name, calibration=calibration.summary, budgets=budgets, infeasible=infeasible,
        limits=_limits(workload, setup, budgets, trials, open_loop=open_loop),
        epsilon=epsilon, delta=delta, seed=seed, open_loop=open_loop,
    )  # fmt: skip


def tune_recorded(
    engine: RecordedEngine,
    server: ServerConfig,
    cells: Sequence[Cell],
    *,
    epsilon: float = 0.02,
    delta: float = 0.05,
    seed: int = 0,
    on_trial: Callable[[Trial], None] = lambda _: None,
) -> Study:
    """Let a recording answer instead of a server.

    Args:
        engine: the recording.
        server: the recorded server, with the dials of the present setting.
        cells: the recorded cells to look at.
        epsilon: cells within this share of the best are equally good.
        delta: how sure to be.
        seed: of the draws of run-to-run noise.
        on_trial: is told of every finished trial.
    """
    infeasible: dict[Cell, DoesNotFitError] = {}
    trials = _run(engine, list(dict.fromkeys([*cells, server.cell])), infeasible, on_trial)
    return _conclude(
        engine, trials, server, engine.workload,
        gpu=engine.recording.gpu, calibration=f"recorded with vLLM {engine.recording.vllm_version}",
        budgets={}, infeasible=infeasible, limits=None, epsilon=epsilon, delta=delta, seed=seed,
    )  # fmt: skip


def tune_live(
    engine: LiveEngine,
    workload: Workload,
    server: ServerConfig,
    cells: Sequence[Cell],
    *,
    gpu: str,
    finished: Sequence[Trial] = (),
    open_loop: bool = False,
    epsilon: float = 0.02,
    delta: float = 0.05,
    seed: int = 0,
    on_trial: Callable[[Trial | FailedTrial], None] = lambda _: None,
) -> Study:
    """Measure every cell on a real server.

    Args:
        engine: entered as a context.
        workload: the traffic.
        server: the user's server, with the dials of the present setting.
        cells: the grid.
        gpu: what it runs on, in words.
        finished: trials of an earlier, interrupted run of the same study.
        open_loop: requests come at the workload's own times.
        epsilon: cells within this share of the best are equally good.
        delta: how sure to be.
        seed: of the draws of run-to-run noise.
        on_trial: is told of every trial, failed ones too.

    Raises:
        SystemFailure: the present cell could not be measured, so there is nothing to compare with.
    """
    trials, failed = list(finished), list[FailedTrial]()
    done = {trial.cell for trial in finished}
    for cell in dict.fromkeys([server.cell, *cells]):
        if cell in done:
            continue
        try:
            trials.append(engine.run(cell))
            on_trial(trials[-1])
        except TrialFailure as failure:
            failed.append(failure.failed)
            on_trial(failure.failed)
            if cell == server.cell:
                raise SystemFailure(f"the present cell {cell} failed: {failure}", failure.failed.remedy) from failure
    return _conclude(
        engine, trials, server, workload,
        gpu=gpu, calibration=f"measured with vLLM {server.vllm_version}",
        budgets={}, infeasible={}, failed=failed, limits=None,
        epsilon=epsilon, delta=delta, seed=seed, open_loop=open_loop,
    )  # fmt: skip


def _check_lengths(workload: Workload, server: ServerConfig) -> None:
    lengths = workload.prompt_tokens + workload.output_tokens
    num_refused = int(np.count_nonzero(lengths > server.max_model_len))
    if num_refused:
        raise InputError(
            f"{num_refused} of {workload.num_requests} requests are longer than max_model_len "
            f"({server.max_model_len} tokens; the longest has {lengths.max()}), and vLLM would refuse them",
            "raise --max-model-len, or leave these requests out of the workload",
        )


def _kv_budgets(setup: Setup, cells: Sequence[Cell]) -> tuple[dict[Cell, KvBudget], dict[Cell, DoesNotFitError]]:
    budgets, infeasible = {}, {}
    for cell in dict.fromkeys(cells):
        try:
            budgets[cell] = setup.kv_budget(cell)
        except DoesNotFitError as error:
            infeasible[cell] = error
    if not budgets or setup.server.cell in infeasible:
        raise infeasible[setup.server.cell]
    return budgets, infeasible


def _run(
    engine: Engine,
    cells: Sequence[Cell],
    infeasible: dict[Cell, DoesNotFitError],
    on_trial: Callable[[Trial], None],
) -> list[Trial]:
    trials = []
    for cell in cells:
        try:
            trial = engine.run(cell)
        except DoesNotFitError as error:
            infeasible[cell] = error
            continue
        trials.append(trial)
        on_trial(trial)
    return trials


def _limits(
    workload: Workload, setup: Setup, budgets: dict[Cell, KvBudget], trials: Sequence[Trial], *, open_loop: bool
) -> Limits | None:
    if open_loop or not trials:
        return None  # the arrivals, not the GPU, set the rate
    largest = max(budgets.values(), key=lambda budget: budget.kv_tokens)
    most_slots = max(cell.max_num_seqs for cell in budgets)
    limits = physical_limits(workload, setup.model, setup.gpu, largest, most_slots, setup.server.tensor_parallel_size)
    best = max(trial.total_tokens_per_s for trial in trials)
    return limits.model_copy(update={"best_simulated_tokens_per_s": best})


def _conclude(
    engine: Engine, trials: Sequence[Trial], server: ServerConfig, workload: Workload, *,
    gpu: str, calibration: str, budgets: dict[Cell, KvBudget], infeasible: dict[Cell, DoesNotFitError],
    limits: Limits | None, epsilon: float, delta: float, seed: int, open_loop: bool = False,
    failed: Sequence[FailedTrial] = (),
) -> Study:  # fmt: skip
    if server.cell not in {trial.cell for trial in trials}:
        raise infeasible[server.cell]
    draws = engine.log_time_draws([trial.cell for trial in trials], NUM_DRAWS, np.random.default_rng(seed))
    recommendation = recommend(trials, server.cell, draws, epsilon=epsilon, delta=delta)
    return Study(
        maitre_version=__version__,
        engine=engine.name,
        server=server,
        gpu=gpu,
        workload_name=workload.name,
        workload_source=workload.source,
        num_requests=workload.num_requests,
        total_tokens=workload.total_tokens,
        open_loop=open_loop,
        calibration=calibration,
        cells=tuple(trials),
        infeasible={str(cell): str(error.args[0]) for cell, error in infeasible.items()},
        failed=tuple(failed),
        budgets={str(cell): budget for cell, budget in budgets.items()},
        limits=limits,
        findings=tuple(
            find_doubts(trials, recommendation, failed, num_requests=workload.num_requests, open_loop=open_loop)
        ),
        recommended=recommendation.recommended,
        recommendation=recommendation,
    )
