"""The whole method on one page: workload and server → KV budget → engine → surface → recommendation → study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from maitre import __version__
from maitre.calibration import calibration_for
from maitre.errors import DoesNotFitError, InputError
from maitre.gpus import Gpu
from maitre.kv_budget import estimate_kv_budget, kv_budget_from_blocks
from maitre.limits import physical_limits
from maitre.models import Model
from maitre.records import Cell, Finding, KvBudget, Limits, Recommendation, ServerConfig, Study, Trial, Workload
from maitre.search import recommend
from maitre.trial import Engine, RecordedEngine, SimulatedEngine
from maitre.units import format_seconds

NUM_DRAWS = 2000

REQUESTS_PER_SLOT = 4
"""Requests for each slot below which ramp and drain weigh on the throughput of a whole run (modelling notes, section 4:
with fewer than one there is no queue at all)."""


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
        budgets={str(cell): budget for cell, budget in budgets.items()},
        limits=limits,
        findings=tuple(_findings(trials, workload.num_requests, recommendation, open_loop=open_loop)),
        recommended=recommendation.recommended,
        recommendation=recommendation,
    )


def _findings(
    trials: Sequence[Trial], num_requests: int, recommendation: Recommendation, *, open_loop: bool
) -> list[Finding]:
    findings = []
    most_slots = max(trial.max_num_seqs for trial in trials)
    if not open_loop and num_requests < REQUESTS_PER_SLOT * most_slots:
        findings.append(
            Finding(
                code="few-requests",
                message=f"{num_requests} requests fill {most_slots} slots fewer than {REQUESTS_PER_SLOT} times, so "
                "ramp and drain weigh on the cells with many slots",
                remedy=f"take at least {REQUESTS_PER_SLOT * most_slots} requests",
            )
        )
    plateau = [trial for trial in trials if trial.cell in recommendation.plateau and trial.itl_s]
    chosen = next(trial for trial in trials if trial.cell == recommendation.recommended)
    calmest = min(plateau, key=lambda trial: trial.itl_s.max if trial.itl_s else 0.0, default=chosen)
    if chosen.itl_s and calmest.itl_s and chosen.itl_s.max > 2 * calmest.itl_s.max:
        findings.append(
            Finding(
                code="long-stall",
                message=f"at {chosen.cell} a stream can stand still for {format_seconds(chosen.itl_s.max)}, rarely "
                f"enough for the p99 not to see it; at {calmest.cell}, as fast within {recommendation.epsilon:.0%}, "
                f"for {format_seconds(calmest.itl_s.max)}",
                remedy=f"take {calmest.cell} if users watch the stream",
            )
        )
    return findings
