"""Why two times cannot be compared, in words that say what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from maitre.metric_series import FloatArray, Histogram
from maitre.verify.before_after.matched_pairs import LEAST_REQUESTS, MatchedPairs, concurrency
from maitre.verify.before_after.paired_change import LEAST_PAIRS
from maitre.verify.window_figures import WindowFigures

WORTH_TELLING = 0.1
"""Relative change of load or lengths that explains why sub-windows find no partner."""
LARGEST_DISTANCE = 0.1
"""Total variation between the lengths of both sides, beyond what chance makes of it."""


class Obstacle(NamedTuple):
    """Why there is no comparison, and what would help."""

    reason: str
    remedy: str


def obstacle(pairs: MatchedPairs) -> Obstacle | None:
    """Why these pairs are no comparison; None where they are one."""
    if len(pairs) < LEAST_PAIRS:
        return _too_few(pairs)
    sides = (pairs.before, pairs.after)
    lengths = {
        "prompts": [[w.prompt_lengths for w in side] for side in sides],
        "outputs": [[w.output_lengths for w in side] for side in sides],
    }
    for title, (before, after) in lengths.items():
        if _differ(before, after):
            return Obstacle(
                f"{title} are as long on average, but their lengths are spread differently",
                "compare times with the same kind of requests, or the same requests with `maitre tune`",
            )
    return None


def _too_few(pairs: MatchedPairs) -> Obstacle:
    sides = (pairs.all_before, pairs.all_after)
    if min(map(len, sides)) < LEAST_PAIRS:
        return Obstacle(
            f"{len(sides[0])} sub-windows before and {len(sides[1])} after have {LEAST_REQUESTS} finished requests or "
            f"more; {LEAST_PAIRS} are needed on each side",
            "take longer times, or longer sub-windows where few requests come",
        )
    moved = [
        sentence
        for title, figure in (
            ("the request rate", lambda w: w.arrival_rps),
            ("the number of requests under way", concurrency),
            ("the mean prompt", lambda w: w.prompt_tokens),
            ("the mean output", lambda w: w.output_tokens),
            ("the prefix hit rate", lambda w: w.prefix_hit_rate),
        )
        if (sentence := _moved(title, figure, sides))
    ]
    return Obstacle(
        f"only {len(pairs)} of {min(map(len, sides))} sub-windows have a counterpart with the same load and traffic"
        + (f": {', '.join(moved)}" if moved else ""),
        "compare the same hours of the same weekday, or longer times on both sides, so that equal loads occur in both",
    )


def _moved(
    title: str, figure: Callable[[WindowFigures], float | None], sides: Sequence[Sequence[WindowFigures]]
) -> str:
    """How far a median moved; empty where it did not, or is not known."""
    known = [[value for w in side if (value := figure(w)) is not None] for side in sides]
    if not all(known):
        return ""
    before, after = (float(np.median(side)) for side in known)
    change = after / before - 1 if before else 0.0
    if abs(change) < WORTH_TELLING:
        return ""
    return f"{title} {'grew' if change > 0 else 'fell'} by {abs(change):.0%}"


def _differ(before: Sequence[Histogram | None], after: Sequence[Histogram | None]) -> bool:
    """Whether two sides' lengths are further apart than LARGEST_DISTANCE and chance together."""
    sums = [_added_up(side) for side in (before, after)]
    if any(one is None or one.sum() <= 0 for one in sums) or len({len(one) for one in sums if one is not None}) > 1:
        return False
    first, second = (one for one in sums if one is not None)
    p, q = first / first.sum(), second / second.sum()
    chance = np.sqrt((p + q) / 2 * (1 / first.sum() + 1 / second.sum())).sum() / 2
    return bool(np.abs(p - q).sum() / 2 > LARGEST_DISTANCE + chance)


def _added_up(histograms: Sequence[Histogram | None]) -> FloatArray | None:
    """Counts of those with the bounds of the first one."""
    known = [one for one in histograms if one is not None]
    alike = [one.counts for one in known if np.array_equal(one.upper, known[0].upper)]
    return np.asarray(np.sum(alike, axis=0), dtype=np.float64) if alike else None
