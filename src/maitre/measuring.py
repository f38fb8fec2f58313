"""The loop of a measured study: ask for a cell, measure it, tell what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from maitre.errors import SystemFailure
from maitre.recording import StepRecord
from maitre.records import Cell, Decision, FailedTrial, Trial
from maitre.search import Ask, Challenge, Told
from maitre.simulator.surface import ReplayedSurface
from maitre.trial.engine import Engine, TrialFailure
from maitre.trial.simulated import simulated_trial

OnRun = Callable[[Trial | FailedTrial, StepRecord | None], None]
OnDecision = Callable[[Decision], None]


@dataclass(frozen=True, slots=True)
class RunLimits:
    """When to stop though the answer is not sure yet."""

    max_trials: int = 12
    """Runs, those of an interrupted study included."""
    max_time_s: float = np.inf
    """Seconds from the first run on; a run that has begun is finished."""
    clock: Callable[[], float] = time.monotonic


NO_LIMITS = RunLimits()
"""The default of `tune_measured`."""


@dataclass(slots=True)
class MeasuredRuns:
    """What the loop has gathered."""

    trials: list[Trial] = field(default_factory=list)
    failed: list[FailedTrial] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    is_cut_off: bool = False
    """The limits ended it, not the search."""

    @property
    def measured_s(self) -> float:
        """Seconds of measuring."""
        return sum(decision.measured_s for decision in self.decisions)


class Measuring:
    """Measures what the search asks for, on one engine."""

    def __init__(
        self, engine: Engine, search: Challenge, surface: ReplayedSurface, on_run: OnRun, on_decision: OnDecision
    ) -> None:
        """Prepare.

        Args:
            engine: measures.
            search: chooses, and learns.
            surface: the simulator.
            on_run: is told of every run, failed ones too.
            on_decision: is told what the search makes of it, right after.
        """
        self._engine = engine
        self._search = search
        self._surface = surface
        self._on_run = on_run
        self._on_decision = on_decision
        self.runs = MeasuredRuns()

    def resume(self, finished: Iterable[tuple[Trial, StepRecord | None]]) -> None:
        """Take over the runs of an interrupted study."""
        for trial, steps in finished:
            told = Told(trial.cell, None if trial.cut_short else trial.duration_s, steps)
            self.runs.trials.append(trial)
            self._learn(Ask(trial.cell, "measured before the interruption"), told, None)

    def run(self, limits: RunLimits) -> MeasuredRuns:
        """Go on until the search has no more questions, or a limit is reached.

        Raises:
            SystemFailure: the present cell, the first, could not be measured: there is nothing to compare with.
        """
        start_s = limits.clock()
        while (ask := self._search.ask()) is not None:
            is_late = limits.clock() - start_s >= limits.max_time_s
            if self.runs.decisions and (is_late or len(self.runs.decisions) >= limits.max_trials):
                self.runs.is_cut_off = True
                break
            self._measure(ask)
        return self.runs

    def _measure(self, ask: Ask) -> None:
        expected_s = self._search.expected_s(ask.cell) if self.runs.trials else None
        try:
            measurement = self._engine.measure(ask.cell, self._search.watch)
        except TrialFailure as failure:
            failed = failure.failed
            self.runs.failed.append(failed)
            self._on_run(failed, None)
            if not self.runs.trials:
                raise SystemFailure(f"the present cell {ask.cell} failed: {failure}", failed.remedy) from failure
            self._learn(ask, Told(ask.cell, None, failed=failed), expected_s)
            self._on_decision(self.runs.decisions[-1])
            return
        trial, steps = measurement.trial, measurement.steps
        self._learn(ask, Told(ask.cell, trial.duration_s if trial else None, steps), expected_s)
        trial = trial or self._cut_short(ask.cell)
        self.runs.trials.append(trial)
        self._on_run(trial, steps)
        self._on_decision(self.runs.decisions[-1])

    def _learn(self, ask: Ask, told: Told, expected_s: float | None) -> None:
        self._search.tell(told)
        leader = self._search.leader
        self.runs.decisions.append(
            Decision(
                **ask.cell.model_dump(),
                reason=ask.reason,
                expected_s=expected_s,
                measured_s=told.measured_s,
                cut_short=told.failed is None and told.duration_s is None,
                failed=told.failed.code if told.failed else "",
                leader=leader,
                probability=self._search.probability(leader),
            )
        )

    def _cut_short(self, cell: Cell) -> Trial:
        """The figures of a run that was ended early: the simulator's, at the pace that was measured."""
        trial = self.predicted(cell)
        return trial.model_copy(update={"engine": self._engine.name, "cut_short": True})

    def predicted(self, cell: Cell) -> Trial:
        """The simulator's figures of a cell, at the pace that all runs so far speak for."""
        coefficients = self._search.posterior.coefficients
        step_time = self._surface.step_time(cell, coefficients)
        return simulated_trial(self._surface, cell, step_time, duration_s=self._search.expected_s(cell))


def measure_every(engine: Engine, cells: Iterable[Cell], finished: Iterable[Trial], on_run: OnRun) -> MeasuredRuns:
    """Measure every cell that is not finished.

    Args:
        engine: measures.
        cells: the present one first.
        finished: trials of an earlier, interrupted run of the same study.
        on_run: is told of every run, failed ones too.

    Raises:
        SystemFailure: the present cell could not be measured: there is nothing to compare with.
    """
    runs = MeasuredRuns(trials=list(finished))
    done = {trial.cell for trial in runs.trials}
    for cell in [cell for cell in dict.fromkeys(cells) if cell not in done]:
        try:
            measurement = engine.measure(cell)
        except TrialFailure as failure:
            runs.failed.append(failure.failed)
            on_run(failure.failed, None)
            if not runs.trials:
                raise SystemFailure(f"the present cell {cell} failed: {failure}", failure.failed.remedy) from failure
            continue
        assert measurement.trial is not None  # nobody watched
        runs.trials.append(measurement.trial)
        on_run(measurement.trial, measurement.steps)
    return runs
