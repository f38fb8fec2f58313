"""The deepest valley between two peaks of a histogram, if it is one that matters."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from maitre.metric_series import FloatArray

LEAST_SHARE = 0.05
"""Of the observations, in the smaller of two modes: a healthy server too has a few steps with prompts in them."""
DEEPEST = 0.8
"""A valley's density over that of the lower one of the peaks beside it, at most."""
LEAST_RATIO = 1.5
"""Between two peaks: below it, padding to CUDA graph sizes or growing contexts make bumps that nobody feels."""


class Valley(NamedTuple):
    """Peak, valley and peak, by the number of the bucket, and the share of the observations on each side."""

    fast: int
    bottom: int
    slow: int
    fast_share: float
    slow_share: float


def bucket_widths(upper: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Widths on the linear and on the logarithmic axis, shape (b,) each.

    The first bucket begins at 0; on the logarithmic axis it is taken to be as wide as the second.

    Args:
        upper: finite bounds above 0, ascending, shape (b,).
    """
    ratios = np.diff(np.log(upper))
    first = ratios[0] if len(ratios) else np.log(2.0)
    return np.diff(upper, prepend=0.0), np.concatenate([[first], ratios])


def deepest_valley(counts: FloatArray, upper: FloatArray) -> Valley | None:
    """The valley that is the deepest on the axis on which it is the shallower; None where none matters.

    Args:
        counts: of the buckets, shape (b,).
        upper: their finite bounds, shape (b,).
    """
    total = counts.sum()
    if len(counts) < 3 or total <= 0:
        return None
    depths = np.maximum(*(_depths(counts / widths) for widths in bucket_widths(upper)))
    left = (counts.cumsum() - counts) / total
    right = 1.0 - left - counts / total
    depths[np.minimum(left, right) < LEAST_SHARE] = np.inf
    bottom = int(depths.argmin())
    if depths[bottom] > DEEPEST:
        return None
    density = counts / bucket_widths(upper)[1]
    fast, slow = int(density[:bottom].argmax()), bottom + 1 + int(density[bottom + 1 :].argmax())
    middles = np.sqrt(upper * np.concatenate([[upper[0] ** 2 / upper[1]], upper[:-1]]))
    if middles[slow] < LEAST_RATIO * middles[fast]:
        return None
    return Valley(fast, bottom, slow, float(left[bottom]), float(right[bottom]))


def _depths(density: FloatArray) -> FloatArray:
    """Each bucket's density over that of the lower one of the highest peaks on its two sides; infinite at the ends."""
    rising, falling = np.maximum.accumulate(density), np.maximum.accumulate(density[::-1])[::-1]
    lower_peak = np.zeros_like(density)
    lower_peak[1:-1] = np.minimum(rising[:-2], falling[2:])
    return np.divide(density, lower_peak, out=np.full_like(density, np.inf), where=lower_peak > 0)
