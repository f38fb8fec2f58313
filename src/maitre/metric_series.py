"""Time series of a server's metrics, whatever they were read from: a Prometheus API, scrapes of `/metrics`, a log.

Counters are cumulative, as servers expose them; a rate or a histogram is made from differences, never from a lifetime's
total. A counter that falls was reset by a restart and has counted from zero since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

MAX_VALUE = 1e18
"""A larger number is none that a server counts or measures, and is read as NaN."""

PLACES = ("instance", "pod", "host_name", "service_instance_id")
"""Labels that tell servers apart where several are scraped; the first one that is there counts."""


@dataclass(frozen=True, slots=True, eq=False)
class MetricSeries:
    """One metric with one set of labels."""

    name: str
    """As vLLM itself writes the sample, such as `vllm:num_preemptions_total`."""
    labels: Mapping[str, str]
    """All but the name."""
    time_s: FloatArray
    """Shape (n,), ascending, since the epoch; NaN for a scrape whose time is not known."""
    values: FloatArray
    """Shape (n,)."""

    @property
    def place(self) -> str:
        """The server that was scraped; empty where nothing tells."""
        return next((self.labels[key] for key in PLACES if self.labels.get(key)), "")

    @property
    def engine(self) -> tuple[str, str]:
        """The server, and the engine in it (the label is there from 0.8.5 on)."""
        return self.place, self.labels.get("engine", self.labels.get("engine_id", ""))


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """What a histogram counted between two moments."""

    upper: FloatArray
    """Upper bounds of the buckets, shape (b,), ascending, the last one infinite."""
    counts: FloatArray
    """Observations in each bucket alone (not cumulative), shape (b,)."""
    total: float
    """The sum of the observed values; NaN where it is not exposed."""

    @property
    def count(self) -> float:
        """The number of observations."""
        return float(self.counts.sum())

    @property
    def mean(self) -> float | None:
        """Exact, unlike the percentiles; None without observations or without a sum."""
        return self.total / self.count if self.count > 0 and np.isfinite(self.total) else None


def increase(series: MetricSeries, start_s: float = -np.inf, end_s: float = np.inf) -> float | None:
    """How far a counter went up within a window, over restarts; None with fewer than two samples in it.

    Args:
        series: cumulative.
        start_s: first moment that counts.
        end_s: last moment that counts.
    """
    values = within(series, start_s, end_s)
    if len(values) < 2:
        return None
    steps = np.diff(values)
    return float(np.where(steps >= 0, steps, values[1:]).sum())


def total_increase(series: Sequence[MetricSeries], start_s: float = -np.inf, end_s: float = np.inf) -> float | None:
    """The sum over engines and label values; None where no series has two samples in the window."""
    known = [gain for one in series if (gain := increase(one, start_s, end_s)) is not None]
    return sum(known) if known else None


def histogram(
    series: Sequence[MetricSeries], family: str, start_s: float = -np.inf, end_s: float = np.inf
) -> Histogram | None:
    """What a family counted within a window, summed over engines; None where no bucket has two samples in it.

    Engines with other bounds are counted at the bounds that all of them have.

    Args:
        series: any; those of `family` are taken.
        family: without `_bucket`, `_sum`, `_count`.
        start_s: first moment that counts.
        end_s: last moment that counts.
    """
    by_engine: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
    for one in series:
        if one.name == f"{family}_bucket" and (gain := increase(one, start_s, end_s)) is not None:
            bound = bucket_bound(one.labels)
            if bound is not None:
                rest = tuple(sorted((key, value) for key, value in one.labels.items() if key != "le"))
                by_engine.setdefault(rest, {})[bound] = gain
    if not by_engine:
        return None
    upper = sorted(set.intersection(*(set(bounds) for bounds in by_engine.values())) | {np.inf})
    cumulative = np.array([sum(bounds.get(le, max(bounds.values())) for bounds in by_engine.values()) for le in upper])
    counts = np.maximum(np.diff(np.maximum.accumulate(cumulative), prepend=0.0), 0.0)
    sums = total_increase([one for one in series if one.name == f"{family}_sum"], start_s, end_s)
    return Histogram(np.array(upper), counts, np.nan if sums is None else sums)


def without_giants(values: FloatArray) -> FloatArray:
    """The values, shape (n,), with NaN for finite numbers of `MAX_VALUE` and more: sums of them overflow."""
    return np.where(np.isfinite(values) & (np.abs(values) >= MAX_VALUE), np.nan, values)


def bucket_bound(labels: Mapping[str, str]) -> float | None:
    """The upper bound of a histogram's bucket, by its label `le`; None where it is missing or no number."""
    try:
        bound = float(labels["le"])
    except (KeyError, ValueError):
        return None
    return None if np.isnan(bound) else bound


def within(series: MetricSeries, start_s: float = -np.inf, end_s: float = np.inf) -> FloatArray:
    """The values in a window that are numbers; samples without a time always count."""
    inside = ~((series.time_s < start_s) | (series.time_s > end_s)) & np.isfinite(series.values)
    return series.values[inside]
