"""What changed from before to after, within pairs of sub-windows, and how sure that is.

    y   a figure of a sub-window, on the axis on which it is compared: its logarithm, or itself
    x   what is matched (load, prompt and output tokens, hit rate), in calipers
    d   difference of y within a pair, less b times the difference of x that matching left
    b   slope of y over x among paired sub-windows of the same side (Abadie and Imbens, Bias-corrected matching
        estimators, J. Bus. Econ. Stat. 29, 2011)

The change is the mean of d. A side's sub-windows are like their neighbours: n of them count as n (1 - r) / (1 + r)
independent ones at a correlation r between neighbours (Bayley and Hammersley, Suppl. J. R. Stat. Soc. 8, 1946). A short
series shows r too small by about (1 + 3 r) / n (Marriott and Pope, Biometrika 41, 1954), and with a standard error of
((1 - r^2) / 2n)^(1/2) over two series; the bias and CAUTION standard errors are added. Two series with r up to 0.7 then
differ at 5 % in 1 to 5 % of the cases from 12 sub-windows on, in up to 8 % where half of the scatter forgets at once.
A bootstrap of blocks of 2 to 6 out of 24 sub-windows would be wrong in 26 to 34 % at r = 0.7: all blocks are too short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student_t

from maitre.metric_series import FloatArray
from maitre.verify.before_after.matched_pairs import CALIPERS, MatchedPairs, covariates
from maitre.verify.window_figures import WindowFigures

LEAST_PAIRS = 5
"""Below, no interval is worth the name."""
CAUTION = 1.5
"""Standard errors that are added to a correlation."""
LEAST_SIZE, LEAST_PART = 2.0, 1 / 8
"""Independent sub-windows of a side at least, and as a part of all: beyond r = 0.78, a short series shows neither its
scatter nor its memory."""
HOLD = 0.1
"""Weight that holds the slope towards 0, in sub-windows that are one caliper away from the mean."""

Figure = Callable[[WindowFigures], float | None]


class PairedChange(NamedTuple):
    """A change on the axis of y, with its interval; levels are means over the pairs."""

    before: float
    after: float
    change: float
    low: float
    high: float
    num_pairs: int


def paired_change(pairs: MatchedPairs, figure: Figure, confidence: float, *, is_ratio: bool) -> PairedChange | None:
    """Compare one figure; None where fewer pairs than LEAST_PAIRS have it.

    Args:
        pairs: matched sub-windows.
        figure: of a sub-window; None where it is not exposed.
        confidence: of the interval, 0 to 1.
        is_ratio: whether logarithms are compared, else the figures themselves; then `before` and `after` are
            geometric means.
    """
    before, after = (_values(side, figure, is_ratio=is_ratio) for side in (pairs.before, pairs.after))
    known = np.isfinite(before) & np.isfinite(after)
    if known.sum() < LEAST_PAIRS:
        return None
    x_before, x_after = (covariates(side, pairs.load) / CALIPERS for side in (pairs.before, pairs.after))
    by_time = [np.argsort([w.start_s for w in side], kind="stable") for side in (pairs.before, pairs.after)]
    ordered = [order[known[order]] for order in by_time]
    model = _fitted([x_before[ordered[0]], x_after[ordered[1]]], [before[ordered[0]], after[ordered[1]]])
    gap = np.nan_to_num(x_after - x_before)[known].mean(axis=0)
    change = float((after - before)[known].mean() - gap @ model.slope)
    size = known.sum() * model.independent_share
    spread = np.sqrt(model.variance / size + gap @ model.slope_covariance @ gap)
    reach = float(student_t.ppf((1 + confidence) / 2, 2 * size - 2) * spread)
    levels = np.array([before[known].mean(), after[known].mean()])
    shown = np.exp(levels) if is_ratio else levels
    return PairedChange(float(shown[0]), float(shown[1]), change, change - reach, change + reach, int(known.sum()))


class _Model(NamedTuple):
    """How a figure follows what is matched, and how sub-windows scatter about that."""

    slope: FloatArray
    """Shape (4,)."""
    slope_covariance: FloatArray
    variance: float
    """Of one sub-window of each side, added up."""
    independent_share: float
    """Of the sub-windows, 0 to 1."""


def _fitted(designs: Sequence[FloatArray], figures: Sequence[FloatArray]) -> _Model:
    """Fit one slope within both sides, and see how what is left of a sub-window agrees with its neighbour.

    Args:
        designs: x of either side in the order of time, shape (n, 4); NaN where unknown.
        figures: y, shape (n,).
    """
    x = [np.nan_to_num(_centred(design)) for design in designs]
    y = [_centred(side) for side in figures]
    stacked = np.concatenate(x)
    inverse = np.linalg.inv(stacked.T @ stacked + HOLD * np.eye(stacked.shape[1]))
    slope = inverse @ stacked.T @ np.concatenate(y)
    residuals = [side - design @ slope for side, design in zip(y, x, strict=True)]
    share = _independent_share(residuals)
    freedom = len(stacked) - len(y) / share - int(stacked.any(axis=0).sum())
    variance = sum(float(left @ left) for left in residuals) / max(1.0, freedom)
    return _Model(slope, np.asarray(variance * inverse, dtype=np.float64), len(y) * variance, share)


def _independent_share(residuals: Sequence[FloatArray]) -> float:
    """(1 - r) / (1 + r), with an r on the safe side from both sides together."""
    power = sum(float(left @ left) for left in residuals)
    product = sum(float(left[1:] @ left[:-1]) for left in residuals)
    seen = product / power if power > 0 else 0.0
    num = sum(map(len, residuals))
    unbiased = seen + (1 + 3 * seen) * len(residuals) / num
    error = np.sqrt((1 - min(max(unbiased, 0.0), 1.0) ** 2) / num)
    correlation = min(max(unbiased + CAUTION * float(error), 0.0), 1.0)
    return max((1 - correlation) / (1 + correlation), LEAST_SIZE * len(residuals) / num, LEAST_PART)


def _centred(values: FloatArray) -> FloatArray:
    """Less the mean of the known values of each column."""
    known = np.isfinite(values)
    means = np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return np.asarray(values - means, dtype=np.float64)


def _values(windows: Sequence[WindowFigures], figure: Figure, *, is_ratio: bool) -> FloatArray:
    """Shape (n,), NaN where unknown, or 0 on a logarithmic axis."""
    values = np.array([np.nan if (value := figure(window)) is None else value for window in windows], dtype=np.float64)
    return np.log(np.where(values > 0, values, np.nan)) if is_ratio else values
