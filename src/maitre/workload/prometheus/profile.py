"""What a server's own metrics tell of its traffic: bounds, means, rate, concurrency, and what is not known."""

from __future__ import annotations

from typing import Literal

import numpy as np

from maitre.metric_series import Histogram
from maitre.records import Finding, Record
from maitre.workload.profile import DropReason
from maitre.workload.prometheus.bounds import BoundedStatistics, bounded_statistics
from maitre.workload.prometheus.doubts import find_doubts
from maitre.workload.prometheus.served import Served, in_flight

ASSUMPTION = "prompt and output lengths are taken to be independent: the histograms hold no pairs"


class RatePercentiles(Record):
    """Finished requests a second, minute by minute."""

    p50: float
    p95: float
    max: float
    width_s: int
    """What each rate was taken over."""


class MetricsProfile(Record):
    """The finished requests of one model within a window; None is unknown, for lack of the metric."""

    name: str
    """The model."""
    source: str
    window: str
    duration_s: float
    """Of the window that the server has samples of."""
    num_requests: int
    """That finished."""
    num_dropped: int = 0
    """A server counts finished requests alone."""
    drop_reasons: tuple[DropReason, ...] = ()
    finished_reasons: dict[str, int]
    """Requests by what ended them: stop, length (cut at max_tokens), abort …"""
    prompt_tokens: BoundedStatistics
    output_tokens: BoundedStatistics
    max_tokens: BoundedStatistics | None
    """What the requests allowed; of one that says nothing, what the context leaves."""
    output_share_of_max_tokens: float | None
    """Mean output over mean allowed."""
    rate_rps: float
    """Finished, not arrived, over `duration_s`."""
    rate_per_minute_rps: RatePercentiles | None
    burstiness: float | None
    """The busiest minute over the mean."""
    concurrency_mean: float | None
    concurrency_p95: float | None
    """Running and waiting requests, over the moments at which the gauges were read."""
    concurrency_source: Literal["gauges"] | None
    waiting_mean: float | None
    mean_latency_s: float | None
    """End to end."""
    little_concurrency: float | None
    """Rate x mean latency, to hold `concurrency_mean` against."""
    ttft_s: BoundedStatistics | None
    prefix_cache_hit_rate: float | None
    """Share of the prompt tokens."""
    assumption: str = ASSUMPTION
    findings: tuple[Finding, ...]


def describe_served(served: Served) -> MetricsProfile:
    """Profile what a server served.

    Args:
        served: at least one finished request.
    """
    busy, rates = in_flight(served), served.rates
    duration_s = served.window_s if rates is None else rates.covered_s
    rate_rps = served.prompt.count / duration_s
    latency_s = None if served.latency_s is None else served.latency_s.mean
    mean_in_flight = float(busy.mean()) if busy.size else None
    little = None if latency_s is None else rate_rps * latency_s
    return MetricsProfile(
        name=served.model or "vLLM",
        source=f"prometheus:{served.address}, what {served.model or 'vLLM'} finished from {served.window}",
        window=served.window,
        duration_s=duration_s,
        num_requests=round(served.prompt.count),
        finished_reasons={reason: round(count) for reason, count in served.finished.items() if count >= 0.5},
        prompt_tokens=bounded_statistics(served.prompt),
        output_tokens=bounded_statistics(served.output),
        max_tokens=_statistics(served.max_tokens),
        output_share_of_max_tokens=_share(served.output.mean, served.max_tokens),
        rate_rps=rate_rps,
        rate_per_minute_rps=_rate_percentiles(served),
        burstiness=None if rates is None else float(rates.per_s.max()) / rate_rps,
        concurrency_mean=mean_in_flight,
        concurrency_p95=float(np.percentile(busy, 95)) if busy.size else None,
        concurrency_source="gauges" if busy.size else None,
        waiting_mean=float(served.waiting.values.mean()) if served.waiting is not None else None,
        mean_latency_s=latency_s,
        little_concurrency=little,
        ttft_s=_statistics(served.ttft_s),
        prefix_cache_hit_rate=served.prefix_hit_rate,
        findings=tuple(find_doubts(served, mean_in_flight, little)),
    )


def _statistics(histogram: Histogram | None) -> BoundedStatistics | None:
    return None if histogram is None else bounded_statistics(histogram)


def _share(mean: float | None, of: Histogram | None) -> float | None:
    return None if mean is None or of is None or not of.mean else mean / of.mean


def _rate_percentiles(served: Served) -> RatePercentiles | None:
    if served.rates is None:
        return None
    p50, p95, most = np.percentile(served.rates.per_s, [50, 95, 100]).tolist()
    return RatePercentiles(p50=p50, p95=p95, max=most, width_s=served.rates.width_s)
