"""The whole method on one page: workload and server → KV budget → runs → surface → recommendation → study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maitre import __version__
from maitre.calibration import Calibration, calibration_for, step_time_factors
from maitre.errors import DoesNotFitError
from maitre.measuring import NO_LIMITS, Measuring, OnDecision, OnRun, RunLimits, measure_every
from maitre.recording import StepRecord
from maitre.records import (
    Cell,
    Decision,
    DriftLoss,
    FailedTrial,
    Finding,
    KvBudget,
    Limits,
    Objective,
    Recommendation,
    ServerConfig,
    Study,
    Trial,
    Workload,
)
from maitre.search import Challenge, find_doubts, recommend
from maitre.search.drift import drift_losses, most_robust
from maitre.search.findings import unsure
from maitre.search.recommend import calmest
from maitre.setup import Setup, check_lengths
from maitre.simulator.surface import ReplayedSurface
from maitre.trial import Engine, SimulatedEngine
from maitre.trial.simulated import simulated_trial

NUM_DRAWS = 2000

THROUGHPUT = Objective()

RUN_SD = 0.007
"""Relative spread of one cell's time from run to run: up to that on an H200 (docs/live-dials.md)."""


@dataclass(frozen=True, slots=True)
class Goal:
    """How good, and how sure."""

    epsilon: float = 0.02
    """Cells within this share of the best are equally good."""
    delta: float = 0.05
    """How unsure the answer may be."""
    seed: int = 0
    """Of all draws."""
    drift: bool = False
    """Of equally good cells, take the one that loses least when traffic or memory change."""


DEFAULT_GOAL = Goal()


def tune_simulated(
    workload: Workload,
    setup: Setup,
    cells: Sequence[Cell],
    goal: Goal = DEFAULT_GOAL,
    *,
    open_loop: bool = False,
    on_trial: Callable[[Trial], None] = lambda _: None,
) -> Study:
    """Predict the surface with the simulator, and recommend a cell.

    Args:
        workload: the traffic.
        setup: what is to be served, on what; its dials are the present setting, which is tried too.
        cells: the grid.
        goal: how good, and how sure.
        open_loop: requests come at the workload's own times instead of all at once.
        on_trial: is told of every finished trial.

    Raises:
        InputError: requests that the server would refuse.
        DoesNotFitError: no cell leaves room for the KV pool.
    """
    check_lengths(workload, setup.server)
    budgets, infeasible = setup.kv_budgets([*cells, setup.server.cell])
    per_token = next(iter(budgets.values())).kv_bytes_per_token or 0
    calibration = calibration_for(setup.model, setup.gpu, setup.server, per_token)
    factors = step_time_factors(setup.model, setup.gpu, setup.server)
    engine = SimulatedEngine(
        workload, setup.server, calibration, lambda cell: budgets[cell].num_gpu_blocks, open_loop=open_loop,
        factors=factors,
    )  # fmt: skip
    trials = []
    for cell in budgets:
        try:
            trials.append(engine.run(cell))
            on_trial(trials[-1])
        except DoesNotFitError as error:
            infeasible[cell] = error
    if setup.server.cell in infeasible:
        raise infeasible[setup.server.cell]
    draws = engine.log_time_draws([trial.cell for trial in trials], NUM_DRAWS, np.random.default_rng(goal.seed))
    answer = recommend(trials, setup.server.cell, draws, epsilon=goal.epsilon, delta=goal.delta)
    drift: list[DriftLoss] = []
    if goal.drift:
        drift = drift_losses(
            workload, setup.server, calibration.step_time, lambda cell: budgets[cell].num_gpu_blocks,
            [trial.cell for trial in trials], answer.plateau, factors,
        )  # fmt: skip
        robust = most_robust(drift)
        pick = calmest([trial for trial in trials if trial.cell in robust]).cell
        answer = recommend(trials, setup.server.cell, draws, epsilon=goal.epsilon, delta=goal.delta, pick=pick)
    return build_study(
        "simulated", workload, setup.server, trials, answer, gpu=setup.gpu.name, calibration=calibration.summary,
        infeasible=infeasible, budgets=budgets, open_loop=open_loop, drift=drift,
        limits=None if open_loop else setup.limits(workload, budgets, trials),  # else the arrivals set the rate
    )  # fmt: skip


def tune_measured(
    engine: Engine,
    surface: ReplayedSurface,
    prior: Calibration,
    server: ServerConfig,
    cells: Sequence[Cell],
    goal: Goal = DEFAULT_GOAL,
    *,
    limits: RunLimits = NO_LIMITS,
    start_s: float = 0.0,
    switch_s: float = 0.0,
    finished: Iterable[tuple[Trial, StepRecord | None]] = (),
    on_run: OnRun = lambda _, __: None,
    on_decision: OnDecision = lambda _: None,
) -> Study:
    """Measure what can still win until the answer is sure, and recommend a cell.

    Args:
        engine: measures, with all requests at once.
        surface: the simulator's schedules of the same workload, with the server's KV pool.
        prior: what is known of the step time before anything is measured.
        server: with the dials of the present setting, which is measured first.
        cells: the grid.
        goal: how good, and how sure.
        limits: end the search though the answer is not sure.
        start_s: seconds that a run costs beside its own time, such as the server's start.
        switch_s: seconds that it costs more if its flags are not those of the run before.
        finished: runs of an earlier, interrupted study of the same question.
        on_run: is told of every run, failed ones too.
        on_decision: is told what the search makes of it, right after.

    Raises:
        SystemFailure: the present cell could not be measured, so there is nothing to compare with.
    """
    search = Challenge(
        cells, server.cell, surface, prior, epsilon=goal.epsilon, delta=goal.delta, start_s=start_s, switch_s=switch_s,
        calm=lambda cell, theta: itl_p99_s(surface, cell, theta), seed=goal.seed,
    )  # fmt: skip
    measuring = Measuring(engine, search, surface, on_run, on_decision)
    measuring.resume(finished)
    runs = measuring.run(limits)
    failed = {failure.cell for failure in runs.failed}
    measured = {trial.cell: trial for trial in sorted(runs.trials, key=lambda trial: not trial.cut_short)}
    known = [i for i, cell in enumerate(search.cells) if cell not in failed or cell in measured]
    trials = [measured.get(search.cells[i]) or measuring.predicted(search.cells[i]) for i in known]
    draws = search.log_time_draws(NUM_DRAWS)[:, known]
    shrunken = [
        trial.model_copy(update={"total_tokens_per_s": surface.workload.total_tokens / search.expected_s(trial.cell)})
        for trial in trials
    ]
    pick, drift = search.recommend(), list[DriftLoss]()
    if goal.drift and len(sure := search.sure_and_measured) > 1:
        step_time = surface.step_time(server.cell, search.posterior.coefficients)
        drift = drift_losses(
            surface.workload, server, step_time, lambda cell: surface.rules(cell).num_gpu_blocks, search.cells, sure,
            surface.factors,
        )  # fmt: skip
        robust = most_robust(drift)
        pick = pick if pick in robust else calmest([trial for trial in trials if trial.cell in robust]).cell
    answer = recommend(
        shrunken, server.cell, draws - draws.mean(axis=0), epsilon=goal.epsilon, delta=goal.delta,
        pick=pick,
    ).model_copy(update={"num_measured": len(runs.decisions), "measured_s": runs.measured_s})  # fmt: skip
    trust = f"the simulator explains them with probability {search.posterior.trust:.0%}"
    return build_study(
        engine.name, surface.workload, server, trials, answer, gpu=prior.gpu, failed=runs.failed,
        calibration=f"fitted to {len(runs.trials)} runs; {trust}", decisions=runs.decisions, drift=drift,
        doubts=[unsure(answer, len(runs.decisions))] if runs.is_cut_off else [],
    )  # fmt: skip


def tune_grid(
    engine: Engine,
    workload: Workload,
    server: ServerConfig,
    cells: Sequence[Cell],
    goal: Goal = DEFAULT_GOAL,
    *,
    gpu: str,
    finished: Iterable[Trial] = (),
    open_loop: bool = False,
    on_run: OnRun = lambda _, __: None,
) -> Study:
    """Measure every cell, and recommend one.

    Args:
        engine: measures.
        workload: the traffic.
        server: with the dials of the present setting, which is measured first.
        cells: the grid.
        goal: how good, and how sure.
        gpu: what it runs on, in words.
        finished: trials of an earlier, interrupted study of the same question.
        open_loop: requests come at the workload's own times.
        on_run: is told of every run, failed ones too.

    Raises:
        SystemFailure: the present cell could not be measured, so there is nothing to compare with.
    """
    runs = measure_every(engine, [server.cell, *cells], finished, on_run)
    draws = np.random.default_rng(goal.seed).normal(0.0, RUN_SD, (NUM_DRAWS, len(runs.trials)))
    answer = recommend(runs.trials, server.cell, draws, epsilon=goal.epsilon, delta=goal.delta)
    return build_study(
        engine.name, workload, server, runs.trials, answer, gpu=gpu, failed=runs.failed, open_loop=open_loop,
        calibration=f"measured with vLLM {server.vllm_version}",
    )  # fmt: skip


def itl_p99_s(surface: ReplayedSurface, cell: Cell, coefficients: NDArray[np.float64]) -> float:
    """The simulator's p99 inter-token latency of a cell, in seconds; coefficients of shape (7,)."""
    trial = simulated_trial(surface, cell, surface.step_time(cell, coefficients))
    return trial.itl_s.p99 if trial.itl_s else 0.0


def build_study(
    engine: str, workload: Workload, server: ServerConfig, trials: Sequence[Trial], answer: Recommendation, *,
    gpu: str, calibration: str, infeasible: dict[Cell, DoesNotFitError] | None = None,
    budgets: dict[Cell, KvBudget] | None = None, limits: Limits | None = None, open_loop: bool = False,
    failed: Sequence[FailedTrial] = (), decisions: Sequence[Decision] = (), doubts: Sequence[Finding] = (),
    drift: Sequence[DriftLoss] = (), objective: Objective = THROUGHPUT,
) -> Study:  # fmt: skip
    """Everything about one surface, with what may be wrong with it; `infeasible` and `budgets` by cell."""
    found = find_doubts(trials, answer, failed, num_requests=workload.num_requests, open_loop=open_loop)
    return Study(
        maitre_version=__version__,
        engine=engine,
        server=server,
        gpu=gpu,
        workload_name=workload.name,
        workload_source=workload.source,
        num_requests=workload.num_requests,
        total_tokens=workload.total_tokens,
        open_loop=open_loop,
        objective=objective,
        calibration=calibration,
        cells=tuple(trials),
        decisions=tuple(decisions),
        drift=tuple(drift),
        infeasible={str(cell): str(error.args[0]) for cell, error in (infeasible or {}).items()},
        failed=tuple(failed),
        budgets={str(cell): budget for cell, budget in (budgets or {}).items()},
        limits=limits,
        findings=(*doubts, *found),
        recommended=answer.recommended,
        recommendation=answer,
    )
