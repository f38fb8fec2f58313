"""Is there enough load to judge, and is it the server that limits it?"""

from __future__ import annotations

import numpy as np

from maitre.metric_series import FloatArray
from maitre.verify.engine_gauges import AT_LIMIT
from maitre.verify.evidence import Evidence
from maitre.verify.verdict import Finding
from maitre.verify.words import percent

REAL_DEMAND = 1.0
"""Requests in flight on average from which a window says something about the limits."""
LEAST_REQUESTS = 20
"""Finished requests from which it does."""
UNDER_USED = 0.5
"""KV usage below which, with real demand and nobody waiting, the defaults are enough (the article's bound)."""
CONSTANT = 0.25
"""Variance of the requests in flight over their mean, at most: it is 1 for independent arrivals (Poisson, M/G/∞), and
next to nothing for clients that wait for their answers."""
NORMAL_SPAN = 1.349
"""Standard deviations between the quartiles: odd samples, when all clients happen to end at once, do not count."""
FEWEST_CLIENTS = 3
LIFETIMES = 4
"""A window has to be so many requests long for each in flight, else their number had no time to change."""


def idle(evidence: Evidence) -> Finding | None:
    """Nothing runs, waits or is generated."""
    flights = [float(np.nanmax(one.in_flight)) for one in evidence.engines if np.isfinite(one.in_flight).any()]
    if not flights or max(flights) > 0 or evidence.whole.num_requests or evidence.whole.output_tokens_per_s:
        return None
    return Finding(
        code="idle",
        verdict="cannot-tell",
        message="the server is idle: no requests run or wait, so nothing can be said about its limits",
        value=0.0,
        remedy="look again under its usual load, for an hour or more",
        remedy_code="measure-more",
    )


def little_load(evidence: Evidence) -> Finding | None:
    """Too few requests to say anything about the limits."""
    in_flight = mean_in_flight(evidence)
    finished = evidence.whole.num_requests
    if in_flight is None or (in_flight >= REAL_DEMAND and (finished is None or finished >= LEAST_REQUESTS)):
        return None
    counted = f", {finished:.0f} finished" if finished is not None else ""
    return Finding(
        code="little-load",
        verdict="not-saturated",
        message=f"the server is hardly loaded: {in_flight:.1f} requests in flight on average{counted}",
        value=in_flight,
        remedy="nothing to turn; look again at a busy hour",
        remedy_code="keep-the-setting",
    )


def closed_loop(evidence: Evidence) -> Finding | None:
    """The requests in flight hardly change in number: clients wait for answers before they ask again."""
    in_flight, limit = total_in_flight(evidence), evidence.deployment.seqs_limit
    finished = evidence.whole.num_requests
    if len(in_flight) < 12 or limit is None or finished is None:
        return None
    low, middle, high = np.quantile(in_flight, [0.25, 0.5, 0.75])
    if middle < FEWEST_CLIENTS or finished < LIFETIMES * middle or middle >= AT_LIMIT * limit * evidence.num_engines:
        return None
    if ((high - low) / NORMAL_SPAN) ** 2 > CONSTANT * middle:
        return None
    return Finding(
        code="closed-loop",
        verdict="client-limited",
        message=f"always {middle:.0f} requests in flight, of {limit * evidence.num_engines} possible: the client sends "
        "the next request when one ends, so the client's concurrency is the limit and not the server",
        value=float(middle),
        remedy="give the client more concurrency; the two limits change nothing",
        remedy_code="look-at-the-client",
        evidence=(f"in flight {low:.0f} to {high:.0f} in half of {len(in_flight)} samples",),
    )


def under_used(evidence: Evidence) -> Finding | None:
    """Real demand, nobody waits, and the pool is less than half full."""
    tops = [usage for one in evidence.engines if len(usage := one.kv_usage[np.isfinite(one.kv_usage)])]
    if not tops:
        return None
    top = max(float(np.quantile(usage, 0.95)) for usage in tops)
    if top >= UNDER_USED:
        return None
    in_flight = mean_in_flight(evidence)
    return Finding(
        code="under-used",
        verdict="defaults-suffice",
        message=f"nobody waits and the KV pool is {percent(top)} full at most (p95): the limits do not bind, leave the "
        "defaults alone",
        value=top,
        remedy="nothing to turn; for more throughput send more traffic, or serve it with fewer GPUs",
        remedy_code="keep-the-setting",
        evidence=(f"{in_flight:.1f} requests in flight on average",) if in_flight is not None else (),
    )


def total_in_flight(evidence: Evidence) -> FloatArray:
    """Requests running or waiting over all engines, at the moments at which all of them were seen; shape (n,)."""
    if not evidence.engines:
        return np.array([])
    first, *others = evidence.engines
    times, total = first.time_s, first.in_flight
    for one in others:
        both = np.isin(times, one.time_s)
        times, total = times[both], total[both] + one.in_flight[np.isin(one.time_s, times)]
    return total[np.isfinite(total)]


def mean_in_flight(evidence: Evidence) -> float | None:
    """Requests running or waiting on average, over all engines."""
    if evidence.whole.running is None and evidence.whole.waiting is None:
        return None
    return (evidence.whole.running or 0.0) + (evidence.whole.waiting or 0.0)
