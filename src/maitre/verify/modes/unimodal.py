"""How far bucketed counts are from the best distribution with one mode.

A density with one mode has mean densities over successive buckets that rise and then fall, and every such sequence
belongs to one: counts speak against one mode exactly as far as their densities do not rise and then fall.

    c   counts of the buckets, shape (..., b)
    w   widths of the buckets, shape (b,), on the axis on which the density is meant
    L   log-likelihood of a sequence of levels, sum of c log(level), up to a constant

The best rising levels are means over blocks (pool adjacent violators; Robertson, Wright and Dykstra, Order Restricted
Statistical Inference, 1988, section 1.5: they maximise the multinomial likelihood too).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import xlogy

from maitre.metric_series import FloatArray


def unimodal_gap(counts: FloatArray, widths: FloatArray) -> FloatArray:
    """Twice the log-likelihood that the best levels with one mode lack, shape (r,); 0 where the counts have one mode.

    Args:
        counts: shape (r, b), of r samples.
        widths: shape (b,).
    """
    occupied = np.flatnonzero(counts.any(axis=0))
    if not len(occupied):
        return np.zeros(len(counts))
    within = slice(occupied[0], occupied[-1] + 1)  # the best levels outside are 0
    counts, widths = counts[:, within], widths[within]
    saturated = (xlogy(counts, counts) - counts * np.log(widths)).sum(axis=1)
    best = (_rising(counts, widths) + _falling(counts, widths)).max(axis=1)
    return np.asarray(np.maximum(0.0, 2.0 * (saturated - best)), dtype=np.float64)


def unimodal_fit(counts: FloatArray, widths: FloatArray) -> FloatArray:
    """The probabilities of the buckets under the best distribution with one mode, shape (b,).

    Args:
        counts: shape (b,), of one sample, not all 0.
        widths: shape (b,).
    """
    rows = counts[np.newaxis]
    split = int((_rising(rows, widths) + _falling(rows, widths)).argmax())
    parts = ((slice(None, split), True), (slice(split, None), False))
    levels = [
        isotonic_regression(counts[part] / widths[part], weights=widths[part], increasing=rises).x
        for part, rises in parts
        if counts[part].size
    ]
    masses = np.concatenate(levels) * widths
    return np.asarray(masses / masses.sum(), dtype=np.float64)


def _rising(counts: FloatArray, widths: FloatArray) -> FloatArray:
    """L of the best rising levels of the first k buckets, k = 0 to b, shape (r, b + 1).

    The last block of k buckets is the one that ends there and has the largest mean (the min-max formula); before it
    stands the best fit of what is left.
    """
    before = np.concatenate([np.zeros((1, len(counts))), counts.T.cumsum(axis=0)])
    reach = np.concatenate([[0.0], widths.cumsum()])
    likelihood = np.zeros_like(before)
    samples = np.arange(len(counts))
    for k in range(1, len(reach)):
        means = (before[k] - before[:k]) / (reach[k] - reach[:k])[:, np.newaxis]
        start = means.argmax(axis=0)
        level = means[start, samples]
        likelihood[k] = likelihood[start, samples] + xlogy(before[k] - before[start, samples], level)
    return likelihood.T


def _falling(counts: FloatArray, widths: FloatArray) -> FloatArray:
    """L of the best falling levels of the buckets from k on, k = 0 to b, shape (r, b + 1)."""
    return _rising(counts[:, ::-1], widths[::-1])[:, ::-1]


def one_mode_p_values(
    counts: FloatArray, widths: FloatArray, num_draws: int, significance: float, rng: np.random.Generator
) -> FloatArray:
    """The chance of a gap as large as observed, or larger, if there was one mode, shape (r,).

    By a bound that holds for any distribution where that is below the significance, else by draws from the best fit
    with one mode.

    Args:
        counts: shape (r, b), of r samples of independent observations.
        widths: shape (b,).
        num_draws: of the bootstrap.
        significance: below which the exact value does not matter.
        rng: of the bootstrap.
    """
    gaps = unimodal_gap(counts, widths)
    p_values = np.where(gaps > 0, _gap_bound(gaps, len(widths)), 1.0)
    open_rows = np.flatnonzero((gaps > 0) & (p_values >= significance))
    if not len(open_rows):
        return p_values
    sizes = np.maximum(1, np.rint(counts[open_rows].sum(axis=1))).astype(np.int64)
    fits = [unimodal_fit(counts[row], widths) for row in open_rows]
    drawn = np.concatenate([rng.multinomial(n, fit, num_draws) for n, fit in zip(sizes, fits, strict=True)])
    draws = unimodal_gap(drawn.astype(np.float64), widths).reshape(-1, num_draws)
    p_values[open_rows] = (1 + (draws >= gaps[open_rows, np.newaxis]).sum(axis=1)) / (num_draws + 1)
    return p_values


def _gap_bound(gaps: FloatArray, num_buckets: int) -> FloatArray:
    """P(gap >= g) <= exp(-(b - 1) (x - 1 - ln x)) at x = g / (2 (b - 1)) > 1, for any distribution and any n.

    The gap is at most twice n times the relative entropy to the truth. Agrawal, Finite-sample concentration of the
    multinomial in relative entropy, IEEE Trans. Inf. Theory 66 (2020), theorem I.2.
    """
    freedom = max(num_buckets - 1, 1)
    x = np.maximum(gaps / (2.0 * freedom), 1.0)
    return np.asarray(np.exp(-freedom * (x - 1.0 - np.log(x))), dtype=np.float64)
