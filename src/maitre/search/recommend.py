"""From the trials of all cells to one answer, with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maitre.records import BoundBy, Cell, Recommendation, Trial
from maitre.units import format_seconds

SAME_LATENCY = 0.02
"""p99 inter-token latencies closer than this count as equal."""

WORTH_LATENCY = 0.2
"""A p99 inter-token latency lower by this share is worth a change at equal throughput."""

BINDS: dict[BoundBy, str] = {
    "seqs": "max_num_seqs binds",
    "token-budget": "max_num_batched_tokens binds",
    "kv-blocks": "the KV pool binds",
    "requests": "only the number of requests binds",
}


class Gain(NamedTuple):
    """A throughput ratio minus 1, with its 95 % interval."""

    central: float
    low: float
    high: float


def recommend(
    trials: Sequence[Trial],
    baseline: Cell,
    log_time_draws: NDArray[np.float64],
    *,
    epsilon: float,
    delta: float,
    pick: Cell | None = None,
) -> Recommendation:
    """The cell to serve with: most useful tokens/s, on the plateau the lowest p99 inter-token latency.

    Args:
        trials: one a cell, the baseline's among them.
        baseline: the present setting.
        log_time_draws: how far each cell's time may be off, shape (draws, trials), as logarithms around the trials.
        epsilon: cells within this share of the best throughput are equally good.
        delta: how sure to be.
        pick: the cell to weigh against the baseline, where a search has chosen it.
    """
    position = {trial.cell: i for i, trial in enumerate(trials)}
    plateau = _plateau(trials, epsilon)
    picked = calmest(plateau) if pick is None else trials[position[pick]]
    present = trials[position[baseline]]
    gain = _gain(picked, present, log_time_draws[:, position[picked.cell]], log_time_draws[:, position[baseline]])
    faster = gain.low > 0 and gain.central > epsilon
    worth_changing = picked.cell != baseline and (faster or _saves_latency(picked, present))
    chosen = picked if worth_changing else present
    speeds = np.log([t.total_tokens_per_s for t in trials]) - log_time_draws
    measured = [trial for trial in trials if trial.engine != "simulated"]
    is_good = speeds[:, position[chosen.cell]] >= speeds.max(axis=1) + np.log1p(-epsilon)
    return Recommendation(
        recommended=chosen.cell,
        baseline=baseline,
        worth_changing=worth_changing,
        gain=gain.central if worth_changing else 0.0,
        gain_low=gain.low if worth_changing else 0.0,
        gain_high=gain.high if worth_changing else 0.0,
        num_measured=len(measured),
        measured_s=sum(trial.duration_s for trial in measured),
        epsilon=epsilon,
        delta=delta,
        probability_within_epsilon=float(is_good.mean()),
        plateau=tuple(trial.cell for trial in plateau),
        reason=_reason(trials, picked, present, gain, worth_changing=worth_changing, faster=faster),
    )


def _plateau(trials: Sequence[Trial], epsilon: float) -> list[Trial]:
    best = max(trial.total_tokens_per_s for trial in trials)
    return [trial for trial in trials if trial.total_tokens_per_s >= best * (1 - epsilon)]


def calmest(plateau: Sequence[Trial]) -> Trial:
    """Lower p99 inter-token latency first, then fewer preemptions, then the smaller dials."""
    least = min(_itl_p99_s(trial) for trial in plateau)
    calm = [trial for trial in plateau if _itl_p99_s(trial) <= least * (1 + SAME_LATENCY)]
    return min(calm, key=lambda t: (t.num_preemptions or 0, t.cell.max_num_seqs, t.cell.max_num_batched_tokens))


def _itl_p99_s(trial: Trial) -> float:
    return trial.itl_s.p99 if trial.itl_s else 0.0


def _gain(pick: Trial, present: Trial, pick_draws: NDArray[np.float64], present_draws: NDArray[np.float64]) -> Gain:
    ratio = pick.total_tokens_per_s / present.total_tokens_per_s
    low, high = np.percentile(ratio * np.exp(present_draws - pick_draws), [2.5, 97.5])
    return Gain(ratio - 1, float(low) - 1, float(high) - 1)


def _saves_latency(pick: Trial, present: Trial) -> bool:
    return _itl_p99_s(pick) <= _itl_p99_s(present) * (1 - WORTH_LATENCY)


def _reason(
    trials: Sequence[Trial], pick: Trial, present: Trial, gain: Gain, *, worth_changing: bool, faster: bool
) -> str:
    if not worth_changing and pick.cell == present.cell:
        sentences = [f"Keep {present.cell}: no cell is better; there {_what_binds(present)}"]
    elif not worth_changing:
        sentences = [
            _keep(pick, present, gain),
            f"At {present.cell} {_what_binds(present)}",
        ]
    elif faster:
        sentences = [
            f"At {present.cell} {_what_binds(present)}{_preemptions(present)}",
            f"{pick.cell} gives {_percent(gain.central)} tokens/s; there {_what_binds(pick)}{_preemptions(pick)}",
            *_beyond(trials, pick),
        ]
    else:
        sentences = [
            _calmer(pick, present, gain),
            f"At {present.cell} {_what_binds(present)}",
            *_beyond(trials, pick),
        ]
    return ". ".join(sentences) + "."


def _keep(pick: Trial, present: Trial, gain: Gain) -> str:
    interval = f"{_percent(gain.low)} to {_percent(gain.high)}"
    change = f"{pick.cell} would change throughput by {_percent(gain.central)} ({interval})"
    return f"Keep {present.cell}: {change}, which is not worth a change"


def _calmer(pick: Trial, present: Trial, gain: Gain) -> str:
    latencies = f"{format_seconds(_itl_p99_s(pick))} instead of {format_seconds(_itl_p99_s(present))}"
    speed = f"{pick.cell} is as fast as {present.cell} ({_percent(gain.central)})"
    return f"{speed}, with a p99 inter-token latency of {latencies}"


def _what_binds(trial: Trial) -> str:
    if trial.bound_by is None:
        return "what binds is not known"
    return f"{BINDS[trial.bound_by]} for {trial.bound_share[trial.bound_by]:.0%} of the time"


def _preemptions(trial: Trial) -> str:
    return f", with {trial.num_preemptions} preemptions" if trial.num_preemptions else ""


def _beyond(trials: Sequence[Trial], pick: Trial) -> list[str]:
    """What more slots would do."""
    more = [
        trial
        for trial in trials
        if (trial.max_num_batched_tokens, trial.flags) == (pick.max_num_batched_tokens, pick.flags)
        and trial.max_num_seqs > pick.max_num_seqs
    ]
    if not more:
        return []
    after = min(more, key=lambda trial: trial.max_num_seqs)
    change = after.total_tokens_per_s / pick.total_tokens_per_s - 1
    return [f"{after.max_num_seqs} slots would change that by {_percent(change)}{_preemptions(after)}"]


def _percent(ratio: float) -> str:
    return f"{round(100 * ratio, 1) + 0.0:+.1f} %"
