"""Sub-windows from before a change beside sub-windows from after it that saw the same load and the same traffic.

What a sub-window is matched by must not depend on how fast the server is. Where requests come from outside, that is how
many arrive; where a fixed number of clients wait for their answers, it is how many are under way; where requests wait
for a slot all the time, the server runs as fast as it can, and only the kind of traffic has to agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import linear_sum_assignment

from maitre.metric_series import FloatArray
from maitre.verify.window_figures import WindowFigures

Load = Literal["rate", "concurrency", "saturated"]

SATURATED = 0.5
"""Share of the samples with waiting requests from which a sub-window runs as fast as it can."""
LEAST_REQUESTS = 20
"""Finished in a sub-window: with fewer, its means are chance."""
CALIPERS = np.array([np.log(1.15), np.log(1.15), np.log(1.15), 0.1])
"""Largest differences within a pair: of log load, log prompt tokens, log output tokens, and prefix hit rate. What a
slope takes out of such a difference is right to a few percent, also near saturation."""
STEADY = 0.05
"""Relative spread of the requests under way below which a fixed number of clients keeps them."""


@dataclass(frozen=True, slots=True, eq=False)
class MatchedPairs:
    """Pairs in the order of time, and all sub-windows that they were chosen from."""

    load: Load
    before: tuple[WindowFigures, ...]
    after: tuple[WindowFigures, ...]
    """The same number."""
    all_before: tuple[WindowFigures, ...]
    all_after: tuple[WindowFigures, ...]

    def __len__(self) -> int:
        return len(self.before)


def concurrency(window: WindowFigures) -> float | None:
    """Requests under way, running or waiting."""
    return None if window.running is None else window.running + (window.waiting or 0.0)


def is_saturated(window: WindowFigures) -> bool:
    """Whether requests wait most of the time."""
    return window.waiting_share is not None and window.waiting_share >= SATURATED


def is_usable(window: WindowFigures) -> bool:
    """Whether it has enough requests; a log does not tell how many."""
    return window.duration_s is not None and (window.num_requests is None or window.num_requests >= LEAST_REQUESTS)


def same_load_pairs(before: Sequence[WindowFigures], after: Sequence[WindowFigures]) -> MatchedPairs:
    """Pairs at the same load, of which at most one is saturated.

    Args:
        before: sub-windows from before the change, in any order.
        after: those from after it.
    """
    return _matched(before, after, _load_kind(before, after))


def saturated_pairs(before: Sequence[WindowFigures], after: Sequence[WindowFigures]) -> MatchedPairs:
    """Pairs of two saturated sub-windows with the same kind of traffic.

    Args:
        before: sub-windows from before the change, in any order.
        after: those from after it.
    """
    return _matched([w for w in before if is_saturated(w)], [w for w in after if is_saturated(w)], "saturated")


def covariates(windows: Sequence[WindowFigures], load: Load) -> FloatArray:
    """What has to agree within a pair, shape (n, 4): logarithms of load, prompt and output tokens, then hit rate.

    NaN: not known.

    Args:
        windows: n of them.
        load: what the load is measured by; always 0 for saturated ones.
    """
    rows = [
        [_log(_load(w, load)), _log(w.prompt_tokens), _log(w.output_tokens), _known(w.prefix_hit_rate)] for w in windows
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, len(CALIPERS))


def _load(window: WindowFigures, load: Load) -> float | None:
    if load == "saturated":
        return 1.0
    return window.arrival_rps if load == "rate" else concurrency(window)


def _load_kind(before: Sequence[WindowFigures], after: Sequence[WindowFigures]) -> Load:
    """By the requests under way where clients keep their number, whatever the rate; else by the rate."""
    rates = [np.array([rate for w in side if (rate := w.arrival_rps)]) for side in (before, after)]
    underway = [np.array([number for w in side if (number := concurrency(w))]) for side in (before, after)]
    if not all(len(side) for side in rates):
        return "concurrency"
    if not all(len(side) for side in underway):
        return "rate"
    is_kept = all(side.std() <= STEADY * side.mean() for side in underway)
    moved = [abs(float(np.log(np.median(sides[1]) / np.median(sides[0])))) for sides in (underway, rates)]
    return "concurrency" if is_kept and moved[0] < STEADY < moved[1] else "rate"


def _matched(before: Sequence[WindowFigures], after: Sequence[WindowFigures], load: Load) -> MatchedPairs:
    """The assignment with the most pairs within the calipers, and among those the closest."""
    sides = [sorted(filter(is_usable, side), key=lambda w: w.start_s) for side in (before, after)]
    x, y = (covariates(side, load) for side in sides)
    gaps = np.abs(x[:, np.newaxis] - y[np.newaxis]) / CALIPERS
    closeness = np.nan_to_num(gaps).max(axis=2, initial=0.0)
    may_pair = (closeness <= 1.0) & ~np.isnan(gaps[:, :, 0])
    if load != "saturated":
        may_pair &= ~np.outer(*(np.array([is_saturated(w) for w in side], dtype=bool) for side in sides))
    cost = np.where(may_pair, np.nan_to_num(gaps**2).sum(axis=2), 4.0 * (1 + min(x.shape[0], y.shape[0])))
    rows, columns = linear_sum_assignment(cost)
    pairs = sorted(
        ((row, column) for row, column in zip(rows, columns, strict=True) if may_pair[row, column]),
        key=lambda pair: (pair[0] + pair[1], np.nansum(x[pair[0]] + y[pair[1]])),
    )
    return MatchedPairs(
        load=load,
        before=tuple(sides[0][row] for row, _ in pairs),
        after=tuple(sides[1][column] for _, column in pairs),
        all_before=tuple(sides[0]),
        all_after=tuple(sides[1]),
    )


def _log(value: float | None) -> float:
    return float(np.log(value)) if value else np.nan


def _known(value: float | None) -> float:
    return np.nan if value is None else value
