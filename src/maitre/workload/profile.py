"""What a workload looks like: percentiles, the joint lengths, rate, burstiness, prefix sharing and concurrency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from maitre.records import Record, Workload
from maitre.workload.concurrency import measure_concurrency
from maitre.workload.joint_lengths import JointLengths, count_joint_lengths, spearman
from maitre.workload.prefixes import shared_prefix_share
from maitre.workload.reference import nearest_reference

if TYPE_CHECKING:
    from numpy.typing import NDArray


class LengthStatistics(Record):
    """Mean and percentiles of token counts (linear interpolation between requests)."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: int


class SecondsStatistics(Record):
    """Mean and percentiles of durations in seconds (linear interpolation between requests)."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class DropReason(Record):
    """Rows of the source that are no usable request for the same reason."""

    reason: str
    count: int


class WorkloadProfile(Record):
    """A workload in figures; None is unknown, for lack of times, latencies or prefixes."""

    name: str
    source: str
    num_requests: int
    num_dropped: int
    drop_reasons: tuple[DropReason, ...]
    """Most frequent first; the counts add up to `num_dropped`."""
    prompt_tokens: LengthStatistics
    output_tokens: LengthStatistics
    joint_lengths: JointLengths
    length_correlation: float | None
    """Spearman's ρ of prompt and output lengths; None when one of them does not vary."""
    duration_s: float | None
    """First to last arrival."""
    rate_rps: float | None
    """Arrivals after the first, over `duration_s`."""
    arrival_gap_cv: float | None
    """Standard deviation over mean of the gaps between arrivals: 1 for a Poisson process, more is burstier."""
    shared_prefix_share: float | None
    """Share of the prompt tokens that an endless prefix cache would answer."""
    ttft_s: SecondsStatistics | None
    """Measured times to first token, where the source has one of every request."""
    concurrency_mean: float | None
    concurrency_p95: float | None
    """Requests in flight, weighted by time."""
    concurrency_source: Literal["timings", "little"] | None
    nearest_reference: str
    """The reference workload whose median lengths are nearest."""


def describe(workload: Workload, mean_latency_s: float | None = None) -> WorkloadProfile:
    """Profile a workload.

    Args:
        workload: n ≥ 1 requests.
        mean_latency_s: mean end-to-end latency in seconds, to estimate the concurrency where the workload has none.
    """
    prompt, output = _statistics(workload.prompt_tokens), _statistics(workload.output_tokens)
    duration_s, rate_rps, gap_cv = _arrivals(workload.arrival_s)
    concurrency = measure_concurrency(workload, mean_latency_s)
    reasons = sorted(workload.num_dropped.items(), key=lambda item: -item[1])
    return WorkloadProfile(
        name=workload.name,
        source=workload.source,
        num_requests=workload.num_requests,
        num_dropped=sum(workload.num_dropped.values()),
        drop_reasons=tuple(DropReason(reason=reason, count=count) for reason, count in reasons),
        prompt_tokens=prompt,
        output_tokens=output,
        joint_lengths=count_joint_lengths(workload.prompt_tokens, workload.output_tokens),
        length_correlation=spearman(workload.prompt_tokens, workload.output_tokens),
        duration_s=duration_s,
        rate_rps=rate_rps,
        arrival_gap_cv=gap_cv,
        shared_prefix_share=shared_prefix_share(workload),
        ttft_s=None if workload.ttft_s is None else _seconds_statistics(workload.ttft_s),
        concurrency_mean=concurrency.mean if concurrency else None,
        concurrency_p95=concurrency.p95 if concurrency else None,
        concurrency_source=concurrency.source if concurrency else None,
        nearest_reference=nearest_reference(prompt.p50, output.p50).name,
    )


def _statistics(tokens: NDArray[np.int64]) -> LengthStatistics:
    p50, p90, p95, p99 = np.percentile(tokens, [50, 90, 95, 99]).tolist()
    return LengthStatistics(mean=float(tokens.mean()), p50=p50, p90=p90, p95=p95, p99=p99, max=int(tokens.max()))


def _seconds_statistics(seconds: NDArray[np.float64]) -> SecondsStatistics:
    p50, p90, p95, p99 = np.percentile(seconds, [50, 90, 95, 99]).tolist()
    return SecondsStatistics(mean=float(seconds.mean()), p50=p50, p90=p90, p95=p95, p99=p99, max=float(seconds.max()))


def _arrivals(arrival_s: NDArray[np.float64] | None) -> tuple[float | None, float | None, float | None]:
    """Duration, rate, and the gaps' coefficient of variation, as far as the arrivals tell them."""
    if arrival_s is None:
        return None, None, None
    duration_s = float(arrival_s[-1] - arrival_s[0])
    if duration_s == 0:
        return duration_s, None, None
    gaps_s = np.diff(arrival_s)
    return duration_s, gaps_s.size / duration_s, float(gaps_s.std() / gaps_s.mean())
