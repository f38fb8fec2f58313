"""The state of a deployment at the last look: what a person reads off a dashboard first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from maitre.metric_series import MetricSeries
from maitre.records import Record
from maitre.vllm.metric_families import INTER_TOKEN_LATENCY, KV_USAGE
from maitre.vllm.metrics_text import MetricSample, read_cache_metrics
from maitre.vllm.stats_log import AGGREGATED, LOWER_BOUND

STALE_S = 300.0
"""A series whose last sample is older than this, counted from the newest one, is of a server that is gone; Prometheus
looks back as far (`--query.lookback-delta`)."""

_SAMPLES = ("_bucket", "_count", "_sum", "")
"""Ends of a histogram's samples; none where it is a native one."""


class Observed(Record):
    """Requests and counters added up over engines. None: not exposed."""

    running: float | None
    waiting: float | None
    """With those that are deferred."""
    swapped: float | None
    """Requests whose KV blocks are in host memory (V0)."""
    kv_usage: float | None
    """The fullest engine's, 0 to 1."""
    kv_usage_mean: float | None
    preemptions_total: float | None
    """Since the server started; where `is_lower_bound`, at least so many."""
    is_lower_bound: bool
    """The preemptions are read from a log: V0's warnings, of every 50th, or steps that compute something again."""
    itl_family: str | None
    """Where inter-token latencies are read."""
    num_gpu_blocks: int | None
    """The null block of each engine included."""
    num_cpu_blocks: int | None
    block_size: int | None
    """Tokens; None where engines differ."""
    kv_tokens: int | None
    engines: int
    """That speak of themselves; 0 without any series."""


def observed(series: Sequence[MetricSeries]) -> Observed:
    """The last value of each series; those that are no number, and negative gauges, do not count.

    Args:
        series: under vLLM's own names.
    """
    samples = _last_samples(series)
    cache = read_cache_metrics(samples)
    usage = next((found for name in KV_USAGE if (found := _values(samples, name))), [])
    names = {sample.name for sample in samples}
    aggregated = {int(sample.labels[AGGREGATED]) for sample in samples if AGGREGATED in sample.labels}
    return Observed(
        running=_sum(samples, "vllm:num_requests_running"),
        waiting=_sum(samples, "vllm:num_requests_waiting"),
        swapped=_sum(samples, "vllm:num_requests_swapped"),
        kv_usage=max(usage, default=None),
        kv_usage_mean=float(np.mean(usage)) if usage else None,
        preemptions_total=_sum(samples, "vllm:num_preemptions_total"),
        is_lower_bound=any(LOWER_BOUND in sample.labels for sample in samples),
        itl_family=next(
            (family for family in INTER_TOKEN_LATENCY if any(family + end in names for end in _SAMPLES)), None
        ),
        num_gpu_blocks=cache.num_gpu_blocks,
        num_cpu_blocks=cache.num_cpu_blocks,
        block_size=cache.block_size,
        kv_tokens=cache.kv_tokens,
        engines=max(aggregated, default=cache.engines),
    )


def _last_samples(series: Sequence[MetricSeries]) -> list[MetricSample]:
    """The last value of each series that is not stale."""
    found = []
    for one in series:
        usable = np.flatnonzero(np.isfinite(one.values) & (one.values >= 0))
        if len(usable):
            found.append((float(one.time_s[usable[-1]]), MetricSample(one.name, one.labels, one.values[usable[-1]])))
    newest_s = max((time_s for time_s, _ in found if np.isfinite(time_s)), default=-np.inf)
    return [
        sample
        for time_s, sample in found
        if not time_s < newest_s - STALE_S or LOWER_BOUND in sample.labels  # warnings come when they come
    ]


def _values(samples: Sequence[MetricSample], name: str) -> list[float]:
    return [float(sample.value) for sample in samples if sample.name == name]


def _sum(samples: Sequence[MetricSample], name: str) -> float | None:
    values = _values(samples, name)
    return sum(values) if values else None
