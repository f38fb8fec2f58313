"""Percentiles of a histogram as what is known of them: the bounds of the bucket that they lie in."""

from __future__ import annotations

import numpy as np

from maitre.metric_series import Histogram
from maitre.records import Record


class Bounds(Record):
    """A value that lies over `low` and is at most `high`."""

    low: float
    high: float | None
    """None: in the open bucket, which has no upper bound."""


class BoundedStatistics(Record):
    """The mean, which is exact, and percentiles as bounds."""

    mean: float | None
    """None where the sum is not exposed."""
    p50: Bounds
    p90: Bounds
    p95: Bounds
    p99: Bounds
    max: Bounds


def bounded_statistics(histogram: Histogram) -> BoundedStatistics:
    """The percentiles of n ≥ 1 observations.

    Args:
        histogram: not empty; in any unit.
    """
    return BoundedStatistics(
        mean=histogram.mean,
        p50=percentile_bounds(histogram, 50),
        p90=percentile_bounds(histogram, 90),
        p95=percentile_bounds(histogram, 95),
        p99=percentile_bounds(histogram, 99),
        max=percentile_bounds(histogram, 100),
    )


def percentile_bounds(histogram: Histogram, percent: float) -> Bounds:
    """The bucket of the smallest value that at least `percent` of the observations do not exceed.

    Args:
        histogram: not empty.
        percent: over 0, up to 100.
    """
    reached = np.cumsum(histogram.counts)
    rank = reached[-1] * percent / 100 * (1 - 1e-12)  # so that rounding does not lead into the next bucket
    bucket = int(np.searchsorted(reached, rank, side="left"))
    high = float(histogram.upper[bucket])
    return Bounds(low=float(histogram.upper[bucket - 1]) if bucket else 0.0, high=high if np.isfinite(high) else None)
