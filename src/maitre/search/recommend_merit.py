"""One answer where the objective is a rate within latency targets, or a latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maitre.records import Cell, Objective, Recommendation, Trial
from maitre.units import format_seconds


@dataclass(frozen=True, slots=True)
class _Gain:
    """Ratio of two merits minus 1, with its 95 % interval."""

    central: float
    low: float
    high: float


NO_GAIN = _Gain(0.0, 0.0, 0.0)


def recommend_by(
    objective: Objective,
    trials: Sequence[Trial],
    baseline: Cell,
    log_merit_draws: NDArray[np.float64],
    *,
    epsilon: float,
    delta: float,
    pick: Cell | None = None,
) -> Recommendation:
    """The cell with the best merit; of cells within epsilon of it the one with fewest preemptions, then smallest dials.

    Args:
        objective: a rate or a latency.
        trials: one a cell, the baseline's among them.
        baseline: the present setting.
        log_merit_draws: how far each cell's merit may be off, shape (draws, trials), as logarithms around the trials.
        epsilon: cells within this share of the best merit are equally good.
        delta: how sure to be.
        pick: the cell to weigh against the baseline, where a search has chosen it.
    """
    position = {trial.cell: i for i, trial in enumerate(trials)}
    present, plateau = trials[position[baseline]], _plateau(objective, trials, epsilon)
    picked = min(plateau, key=_smallest) if pick is None else trials[position[pick]]
    if objective.merit(picked) == 0:
        picked, plateau = present, []
    draws = log_merit_draws[:, position[picked.cell]] - log_merit_draws[:, position[baseline]]
    gain = _gain(objective, picked, present, draws)
    is_better = gain is None or (gain.low > 0 and gain.central > epsilon) or _misses_more(objective, present, picked)
    worth_changing = picked.cell != baseline and is_better
    chosen = picked if worth_changing else present
    shown = gain if worth_changing else NO_GAIN
    return Recommendation(
        recommended=chosen.cell,
        baseline=baseline,
        worth_changing=worth_changing,
        gain=shown.central if shown else None,
        gain_low=shown.low if shown else None,
        gain_high=shown.high if shown else None,
        num_measured=0,
        measured_s=0.0,
        epsilon=epsilon,
        delta=delta,
        probability_within_epsilon=_probability(objective, trials, log_merit_draws, position[chosen.cell], epsilon),
        plateau=tuple(trial.cell for trial in plateau),
        reason=_reason(objective, picked, present, gain, worth_changing=worth_changing),
    )


def _smallest(trial: Trial) -> tuple[int, int, int]:
    """Fewest preemptions first, then the smaller dials."""
    return trial.num_preemptions or 0, trial.max_num_seqs, trial.max_num_batched_tokens


def meets_targets(objective: Objective, trial: Trial) -> bool:
    """Whether all targets are met: at some rate, or in this run."""
    if objective.kind == "rate":
        return objective.value(trial) > 0
    return trial.attainment is None or trial.attainment.met


def _plateau(objective: Objective, trials: Sequence[Trial], epsilon: float) -> list[Trial]:
    """The best cells; for a latency, cells that miss a target count only if all do."""
    eligible = [trial for trial in trials if meets_targets(objective, trial)] or list(trials)
    best = max(objective.merit(trial) for trial in eligible)
    return [trial for trial in eligible if objective.merit(trial) >= best * (1 - epsilon)]


def _misses_more(objective: Objective, present: Trial, pick: Trial) -> bool:
    return meets_targets(objective, pick) and not meets_targets(objective, present)


def _gain(objective: Objective, pick: Trial, present: Trial, draws: NDArray[np.float64]) -> _Gain | None:
    """None if the present setting has no merit at all."""
    if objective.merit(present) == 0:
        return None if objective.merit(pick) else NO_GAIN
    ratio = objective.merit(pick) / objective.merit(present)
    low, high = np.percentile(ratio * np.exp(draws), [2.5, 97.5])
    return _Gain(ratio - 1, float(low) - 1, float(high) - 1)


def _probability(
    objective: Objective, trials: Sequence[Trial], draws: NDArray[np.float64], chosen: int, epsilon: float
) -> float | None:
    """That no eligible cell is better by more than epsilon; None if there is nothing to be better in."""
    merits = np.array([objective.merit(t) if meets_targets(objective, t) else 0.0 for t in trials])
    if merits[chosen] == 0:
        return None
    with np.errstate(divide="ignore"):
        logs = np.log(merits) + draws
    return float(np.mean(logs[:, chosen] >= logs.max(axis=1) + np.log1p(-epsilon)))


def _reason(objective: Objective, pick: Trial, present: Trial, gain: _Gain | None, *, worth_changing: bool) -> str:
    words = _RateWords(objective) if objective.kind == "rate" else _LatencyWords(objective)
    if not worth_changing and pick.cell == present.cell:
        return f"Keep {present.cell}: {words.no_better(present)}."
    if not worth_changing:
        assert gain is not None
        low, high = sorted((objective.change(gain.low), objective.change(gain.high)))
        interval = f"{_percent(objective.change(gain.central))} ({_percent(low)} to {_percent(high)})"
        change = f"{pick.cell} would change {words.subject} by {interval}, which is not worth a change"
        return f"Keep {present.cell}: {change}. At {present.cell} {words.tell(present)}."
    return f"At {present.cell} {words.tell(present)}. At {pick.cell} {words.tell(pick)}."


class _RateWords:
    """Sentences about the highest rate."""

    subject = "the highest rate"

    def __init__(self, objective: Objective) -> None:
        self._targets = " and ".join(objective.targets)

    def tell(self, trial: Trial) -> str:
        found = trial.highest_rate
        assert found is not None
        if found.rate_rps == 0:
            return f"{found.bound_by} is out of reach, even for requests that come one by one{_reached(trial)}"
        ends = "the capacity ends it" if found.bound_by == "capacity" else f"{found.bound_by} ends it"
        return f"{self._targets} can be held up to {found.rate_rps:.3g} requests/s, where {ends}"

    def no_better(self, trial: Trial) -> str:
        if self.is_none(trial):
            return f"no cell of the grid meets the targets. There {self.tell(trial)}"
        return f"no cell is better; there {self.tell(trial)}"

    @staticmethod
    def is_none(trial: Trial) -> bool:
        return trial.highest_rate is None or trial.highest_rate.rate_rps == 0


class _LatencyWords:
    """Sentences about a latency at the traffic's own rate."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self.subject = objective.latency

    def tell(self, trial: Trial) -> str:
        return f"{self._objective.latency} is {format_seconds(self._objective.value(trial))}{_missed(trial)}"

    def no_better(self, trial: Trial) -> str:
        return f"no cell is better; there {self.tell(trial)}"


def _reached(trial: Trial) -> str:
    """What the target that is out of reach would be."""
    assert trial.highest_rate is not None
    held = trial.attainment.by_target if trial.attainment else ()
    values = [one.value_s for one in held if one.target == trial.highest_rate.bound_by and one.value_s is not None]
    return f" ({format_seconds(values[0])})" if values else ""


def _missed(trial: Trial) -> str:
    missed = [one.target for one in trial.attainment.by_target if not one.met] if trial.attainment else []
    return f", which misses {' and '.join(missed)}" if missed else ""


def _percent(ratio: float) -> str:
    return f"{round(100 * ratio, 1) + 0.0:+.1f} %"
