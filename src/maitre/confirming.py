"""After the search: the recommended setting and the present one in turn, and what is left of the gain."""

from __future__ import annotations

from collections.abc import Iterable

from maitre.measuring import OnRun
from maitre.records import Cell, Confirmation, Finding, Recommendation, Study, Trial
from maitre.search.confirm import MOST_PAIRS, NUM_PAIRS, is_new_first, paired_gain
from maitre.trial.engine import Engine, TrialFailure


def confirm(engine: Engine, study: Study, finished: Iterable[Trial], on_run: OnRun) -> Study:
    """Run both settings in turn, and judge the change by these runs alone.

    Args:
        engine: measures; one that starts the server for every run makes them independent of the search.
        study: with a recommendation that is worth a change.
        finished: runs of an earlier, interrupted confirmation.
        on_run: is told of every run, a failed one too.
    """
    answer = study.recommendation
    pairs = _Pairs(engine, answer, list(finished), on_run)
    try:
        for number in range(MOST_PAIRS):
            pairs.run(number)
            if number + 1 >= NUM_PAIRS and not pairs.is_open:
                break
    except TrialFailure as failure:
        on_run(failure.failed, None)
        return _failed(study, failure)
    confirmation = pairs.confirmation
    judged = _judge(answer, confirmation, is_calmer=(answer.gain or 0.0) <= answer.epsilon)
    return study.model_copy(
        update={"confirmation": confirmation, "recommendation": judged, "recommended": judged.recommended}
    )


class _Pairs:
    """Runs of the recommended setting and of the present one, side by side."""

    def __init__(self, engine: Engine, answer: Recommendation, finished: list[Trial], on_run: OnRun) -> None:
        self._engine = engine
        self._new, self._old = answer.recommended, answer.baseline
        self._finished = finished
        self._on_run = on_run
        self._seconds: dict[Cell, list[float]] = {self._new: [], self._old: []}

    def run(self, number: int) -> None:
        """One of each."""
        first, second = (self._new, self._old) if is_new_first(number) else (self._old, self._new)
        for cell in (first, second):
            self._seconds[cell].append(self._run(cell).duration_s)

    @property
    def confirmation(self) -> Confirmation:
        """What the pairs say so far."""
        gain, low, high = paired_gain(self._seconds[self._new], self._seconds[self._old])
        return Confirmation(
            engine=self._engine.name,
            recommended=self._new,
            baseline=self._old,
            recommended_s=tuple(self._seconds[self._new]),
            baseline_s=tuple(self._seconds[self._old]),
            gain=gain,
            gain_low=low,
            gain_high=high,
        )

    @property
    def is_open(self) -> bool:
        """There may be a gain or none."""
        return self.confirmation.gain_low <= 0 < self.confirmation.gain

    def _run(self, cell: Cell) -> Trial:
        for trial in self._finished:
            if trial.cell == cell:
                self._finished.remove(trial)
                return trial
        measurement = self._engine.measure(cell)
        assert measurement.trial is not None  # nobody watched
        self._on_run(measurement.trial, measurement.steps)
        return measurement.trial


def _judge(answer: Recommendation, confirmation: Confirmation, *, is_calmer: bool) -> Recommendation:
    """The gain is the confirmed one. Without any, and without a calmer stream, the present setting stays."""
    interval = f"{confirmation.gain:+.1%} ({confirmation.gain_low:+.1%} to {confirmation.gain_high:+.1%})"
    gain = {"gain": confirmation.gain, "gain_low": confirmation.gain_low, "gain_high": confirmation.gain_high}
    if confirmation.gain_low > 0 or (is_calmer and confirmation.gain_high > -answer.epsilon):
        return answer.model_copy(update=gain)
    reason = (
        f"Keep {answer.baseline}: {answer.recommended} looked faster in the search, but run in turn with it the gain "
        f"was {interval}, which is no significant gain."
    )
    return answer.model_copy(
        update={**dict.fromkeys(gain, 0.0), "recommended": answer.baseline, "worth_changing": False, "reason": reason}
    )


def _failed(study: Study, failure: TrialFailure) -> Study:
    """What could not be run again is not recommended."""
    answer = study.recommendation
    failed = failure.failed
    finding = Finding(
        code=f"unconfirmed-{failed.code}",
        message=f"{failed.cell} failed while the gain was to be confirmed: {failed.message}",
        remedy=failed.remedy,
    )
    kept = answer.model_copy(
        update={
            "recommended": answer.baseline, "worth_changing": False, "gain": 0.0, "gain_low": 0.0, "gain_high": 0.0,
            "reason": f"Keep {answer.baseline}: {answer.recommended} could not be confirmed.",
        }
    )  # fmt: skip
    return study.model_copy(
        update={"recommendation": kept, "recommended": kept.recommended, "findings": (finding, *study.findings)}
    )
