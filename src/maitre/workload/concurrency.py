"""How many requests were in flight at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from maitre.records import Record, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Concurrency(Record):
    """Requests in flight from the first to the last arrival, weighted by time; what drains afterwards is left out."""

    mean: float
    p95: float
    source: Literal["timings", "little"]
    """`timings`: each request's own latency. `little`: the same latency for all, and the mean by Little's law."""


def measure_concurrency(workload: Workload, mean_latency_s: float | None = None) -> Concurrency | None:
    """Requests in flight over time, from measured latencies, else from a mean latency; None when neither is known.

    Args:
        workload: needs arrival times.
        mean_latency_s: end-to-end latency that stands for every request, where the workload has no latencies.
    """
    if workload.arrival_s is None:
        return None
    if workload.latency_s is not None:
        mean, p95 = _weigh(workload.arrival_s, workload.latency_s)
        return Concurrency(mean=mean, p95=p95, source="timings")
    if mean_latency_s is None:
        return None
    mean, p95 = _weigh(workload.arrival_s, np.full(workload.num_requests, mean_latency_s))
    duration_s = float(workload.arrival_s[-1] - workload.arrival_s[0])
    if duration_s > 0:  # L = λ W (Little 1961), free of the ramp in which earlier requests are not known
        mean = (workload.num_requests - 1) / duration_s * mean_latency_s
    return Concurrency(mean=mean, p95=p95, source="little")


def _weigh(arrival_s: NDArray[np.float64], latency_s: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and 95th percentile of the number in flight, weighted by time."""
    ends_s = np.minimum(arrival_s + latency_s, arrival_s[-1])
    moments = np.concatenate([ends_s, arrival_s])  # ends first: a stable sort lets them win ties
    changes = np.repeat([-1, 1], arrival_s.size)
    order = np.argsort(moments, kind="stable")
    in_flight = np.cumsum(changes[order])[:-1]
    weights_s = np.diff(moments[order])
    if not weights_s.any():  # all arrive at once
        return float(arrival_s.size), float(arrival_s.size)
    by_level = np.argsort(in_flight, kind="stable")
    reached_s = np.cumsum(weights_s[by_level])
    p95 = in_flight[by_level][np.searchsorted(reached_s, 0.95 * reached_s[-1])]
    return float(np.average(in_flight, weights=weights_s)), float(p95)
