"""Native histograms, and those with custom bounds, as the classic cumulative series that vLLM itself exposes.

A native histogram lists its filled buckets alone, each as (rule, left, right, count); how fine they are may change over
time. A bound is kept if no bucket of any moment lies across it, so that every count is exact
(prometheus, `model/histogram/float_histogram.go` and `web/api/v1/json_codec.go`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from maitre.metric_series import FloatArray, MetricSeries, without_giants


class NativeHistogram(msgspec.Struct):
    """One sample, as the API writes it; numbers are strings."""

    count: str
    sum: str
    buckets: list[tuple[int, str, str, str]] = []
    """Of the filled ones: which bounds belong to it, left bound, right bound, observations in it alone."""


def classic_series(
    name: str, labels: Mapping[str, str], time_s: FloatArray, samples: Sequence[NativeHistogram]
) -> Iterator[MetricSeries]:
    """The `_bucket` series with their `le`, `_sum` and `_count`.

    Args:
        name: of the histogram, without a suffix.
        labels: all but the name.
        time_s: shape (n,).
        samples: n of them.
    """
    tables = [_table(sample) for sample in samples]
    for bound in _bounds(tables):
        counts = np.array([count[right <= bound].sum() for _, right, count in tables])
        yield MetricSeries(f"{name}_bucket", {**labels, "le": repr(float(bound))}, time_s, counts)
    counts = _values([sample.count for sample in samples])
    yield MetricSeries(f"{name}_bucket", {**labels, "le": "+Inf"}, time_s, counts)
    yield MetricSeries(f"{name}_count", labels, time_s, counts)
    yield MetricSeries(f"{name}_sum", labels, time_s, _values([sample.sum for sample in samples]))


def _values(texts: Sequence[str]) -> FloatArray:
    return without_giants(np.array([float(text) for text in texts]))


def _table(sample: NativeHistogram) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Left bounds, right bounds, counts."""
    left, right = (np.array([float(row[i]) for row in sample.buckets]) for i in (1, 2))
    return left, right, _values([row[3] for row in sample.buckets])


def _bounds(tables: Sequence[tuple[FloatArray, FloatArray, FloatArray]]) -> FloatArray:
    """Ascending and finite. The left ones count too: what lies between two filled buckets is empty."""
    edges = {float(edge) for left, right, _ in tables for edge in (*left, *right)}
    found: FloatArray = np.array(sorted(edge for edge in edges if np.isfinite(edge)), dtype=np.float64)
    for left, right, _ in tables:
        found = found[~((left[:, None] < found) & (found < right[:, None])).any(axis=0)]
    return found
