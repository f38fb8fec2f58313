"""The highest rate within latency targets on a real server: search, confirm, conclude."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import Calibration
from maitre.errors import SystemFailure
from maitre.measuring import NO_LIMITS, MeasuredRuns, OnRun, RunLimits
from maitre.rate_search import RateAsk, RateSearch
from maitre.recording import StepRecord
from maitre.records import (
    Cell,
    Decision,
    FailedTrial,
    Finding,
    Objective,
    Recommendation,
    ServerConfig,
    Study,
    Trial,
    Workload,
)
from maitre.search.findings import unsure
from maitre.search.merit_doubts import doubt_merits
from maitre.search.merit_spread import NUM_SAMPLES, draw_samples
from maitre.search.recommend_merit import recommend_by
from maitre.simulator.surface import ReplayedSurface
from maitre.slo import LatencyTarget
from maitre.trial.engine import Measurement, TrialFailure
from maitre.trial.paced import PacedSurface
from maitre.trial.rate_surface import RateSurface, nearest
from maitre.tune import DEFAULT_GOAL, Goal, build_study
from maitre.workload.arrivals import own_rate_rps

MeasureRequests = Callable[[Cell, Workload], Measurement]
"""Runs requests at a cell: at their arrival times, or all at once without any. The trial has its attainment."""


def tune_measured_rate(
    measure: MeasureRequests,
    schedules: ReplayedSurface,
    paced: PacedSurface,
    prior: Calibration,
    server: ServerConfig,
    cells: Sequence[Cell],
    targets: Sequence[LatencyTarget],
    goal: Goal = DEFAULT_GOAL,
    *,
    engine: str,
    limits: RunLimits = NO_LIMITS,
    finished: Iterable[tuple[Trial, StepRecord | None]] = (),
    on_run: OnRun = lambda _, __: None,
) -> Study:
    """Measure until the cell with the highest rate is sure and its rate confirmed, and recommend it.

    Args:
        measure: runs requests on the server.
        schedules: of the workload, all at once, with the server's KV pool.
        paced: of the workload at any rate, with the same pool.
        prior: what is known of the step time before anything is measured.
        server: with the dials of the present setting.
        cells: the grid.
        targets: at least one.
        goal: how good, and how sure.
        engine: who measures, in a word.
        limits: end the search though the answer is not sure.
        finished: runs of an earlier, interrupted study of the same question.
        on_run: is told of every run, failed ones too.

    Raises:
        SystemFailure: the present cell could not be measured, so there is nothing to compare with.
    """
    search = RateSearch(
        cells, server.cell, RateSurface(paced, targets), schedules, prior,
        epsilon=goal.epsilon, delta=goal.delta, seed=goal.seed,
    )  # fmt: skip
    loop = _Loop(measure, search, engine, on_run)
    loop.resume(finished)
    loop.run(limits)
    return _conclude(loop, prior, server, targets, goal)


class _Loop:
    """Ask, measure, tell."""

    def __init__(self, measure: MeasureRequests, search: RateSearch, engine: str, on_run: OnRun) -> None:
        self.search = search
        self.engine = engine
        self.runs = MeasuredRuns()
        self._measure = measure
        self._on_run = on_run

    def resume(self, finished: Iterable[tuple[Trial, StepRecord | None]]) -> None:
        for trial, steps in finished:
            self._learn(RateAsk(trial.cell, trial.arrival_rps, "measured before the interruption"), trial, steps)

    def run(self, limits: RunLimits) -> None:
        start_s = limits.clock()
        while (ask := self.search.ask()) is not None:
            is_late = limits.clock() - start_s >= limits.max_time_s
            if self.runs.decisions and (is_late or len(self.runs.decisions) >= limits.max_trials):
                self.runs.is_cut_off = True
                return
            self._run(ask)

    def _run(self, ask: RateAsk) -> None:
        paced = self.search.rates.paced
        requests = paced.at_once() if ask.rate_rps is None else paced.at(ask.rate_rps)
        try:
            measurement = self._measure(ask.cell, requests)
        except TrialFailure as failure:
            self.runs.failed.append(failure.failed)
            self._on_run(failure.failed, None)
            if not self.runs.trials:
                what = f"the present cell {ask.cell} failed: {failure}"
                raise SystemFailure(what, failure.failed.remedy) from failure
            self._learn(ask, failure.failed, None)
            return
        assert measurement.trial is not None  # nobody watched
        trial = measurement.trial.model_copy(update={"arrival_rps": ask.rate_rps})
        self._learn(ask, trial, measurement.steps)
        self._on_run(trial, measurement.steps)

    def _learn(self, ask: RateAsk, came: Trial | FailedTrial, steps: StepRecord | None) -> None:
        trial = came if isinstance(came, Trial) else None
        if trial is not None:
            self.runs.trials.append(trial)
        self.search.tell(ask.cell, trial, steps)
        leader = self.search.leader
        self.runs.decisions.append(
            Decision(
                **ask.cell.model_dump(),
                reason=ask.reason,
                expected_s=None,
                rate_rps=ask.rate_rps,
                measured_s=trial.duration_s if trial else 0.0,
                failed=came.code if isinstance(came, FailedTrial) else "",
                leader=leader,
                probability=self.search.probability(leader),
            )
        )


def _conclude(
    loop: _Loop, prior: Calibration, server: ServerConfig, targets: Sequence[LatencyTarget], goal: Goal
) -> Study:
    search, runs, workload = loop.search, loop.runs, loop.search.rates.paced.workload
    failed = {failure.cell for failure in runs.failed}
    known = [i for i, cell in enumerate(search.cells) if cell not in failed or cell in search.paced]
    trials = [search.trial(search.cells[i]) for i in known]
    names = tuple(str(target) for target in targets)
    objective = Objective(kind="rate", targets=names, own_rate_rps=own_rate_rps(workload))
    answer = recommend_by(
        objective, trials, server.cell, _changes(search, goal.seed)[:, known], epsilon=goal.epsilon,
        delta=goal.delta, pick=search.recommend(),
    ).model_copy(update={"num_measured": len(runs.decisions), "measured_s": runs.measured_s})  # fmt: skip
    doubts = _unconfirmed(search, answer) + doubt_merits(objective, trials, answer)
    if runs.is_cut_off:
        doubts.insert(0, unsure(answer, len(runs.decisions)))
    trust = f"the simulator explains them with probability {search.known.trust:.0%}"
    return build_study(
        loop.engine, workload, server, trials, answer, gpu=prior.gpu, failed=runs.failed, open_loop=True,
        calibration=f"fitted to {len(runs.trials)} runs; {trust}", decisions=runs.decisions, doubts=doubts,
        objective=objective,
    )  # fmt: skip


def _changes(search: RateSearch, seed: int) -> NDArray[np.float64]:
    """How far the logarithms of the highest rates may be off, shape (draws, cells), other samples of traffic included.

    Two cells are tried with other samples, the recommended and the present one; another takes those of the nearest.
    """
    tried = [cell for cell in dict.fromkeys([search.recommend(), search.baseline]) if search.rate(cell) > 0]
    if not tried:
        return search.known.changes
    others = [search.rates.resampled(seed + number) for number in range(1, NUM_SAMPLES + 1)]
    samples = {cell: search.known.sample_changes(cell, others) for cell in tried}
    near = [nearest(cell, samples) or tried[0] for cell in search.cells]
    generator = np.random.default_rng(seed)
    return search.known.changes + draw_samples(
        np.stack([samples[cell] for cell in near]), len(search.known.changes), generator
    )


def _unconfirmed(search: RateSearch, answer: Recommendation) -> list[Finding]:
    if search.rate(answer.recommended) == 0 or search.is_confirmed(answer.recommended):
        return []
    confirmed_rps = search.confirmed_rps(answer.recommended)
    so_far = "no run has met the targets" if confirmed_rps is None else f"they were met at {confirmed_rps:.3g}"
    return [
        Finding(
            code="rate-not-confirmed",
            message=f"{answer.recommended} is foretold to hold the targets up to {search.rate(answer.recommended):.3g} "
            f"requests/s, but {so_far}",
            remedy="plan with the rate that was met, or run the command again with a larger --max-trials",
        )
    ]
