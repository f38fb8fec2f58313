"""Doubts about what a server's metrics tell of its traffic, each with a remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from maitre.metric_series import FloatArray, Histogram
from maitre.records import Finding
from maitre.workload.prometheus.bounds import percentile_bounds
from maitre.workload.prometheus.served import Served

_LITTLE = 0.2
"""Share by which rate x latency and the gauges may differ: gauges are read a few times a minute only."""
_FEW_IN_FLIGHT = 1.0
_FULL = 0.95
"""Of the most running requests: at or above it for half of the time, with others waiting, a limit holds them back."""
_LEAST_GROWN, _GROWN = 10.0, 0.05
"""Requests by which a queue grows, and share of all that finished."""
_MOST_ABORTED = 0.05
_MOST_CUT = 0.2
_LEAST_COVERED = 0.9
_LEAST_CACHED = 0.05
_WIDEST = 1.5
"""Upper over lower bound of a percentile; the default buckets have 2 and 2.5."""
_STEP = 1.25
"""Of the buckets that are proposed: 10 a decade, so percentiles are known within 25 %."""
_LEAST_PERCENT = 5
"""Shorter lengths share one bucket: each costs a series of every engine."""
_OPEN = 2.5
"""How far vLLM's own open bucket may reach over its last bound."""


def find_doubts(served: Served, in_flight_mean: float | None, little: float | None) -> list[Finding]:
    """What may be wrong with the figures, or is not known from them.

    Args:
        served: what was read.
        in_flight_mean: from the gauges.
        little: the same, as rate x mean latency.
    """
    doubts = [*_window_doubts(served), *_queue_doubts(served)]
    if in_flight_mean is not None and little is not None:
        doubts += _little_doubts(in_flight_mean, little)
    return [*doubts, *_ended_doubts(served), *_rebuilding_doubts(served), *_width_doubts(served)]


def _window_doubts(served: Served) -> Iterator[Finding]:
    for remark in served.remarks:
        yield Finding(
            code="server-remark", message=f"the server remarks: {remark}", remedy="the figures may be incomplete"
        )
    covered_s = served.window_s if served.rates is None else served.rates.covered_s
    if covered_s < _LEAST_COVERED * served.window_s:
        yield Finding(
            code="window-not-covered",
            message=f"the server has samples of {covered_s / served.window_s:.0%} of the window only",
            remedy="ask for a window that it was scraped in, with --since and --until",
        )


def _queue_doubts(served: Served) -> Iterator[Finding]:
    if served.running is None or served.waiting is None or not served.waiting.values.size:
        return
    running, waiting = served.running.values, served.waiting.values
    if float(np.median(waiting)) >= 1 and float(np.median(running)) >= _FULL * running.max():
        yield Finding(
            code="saturated",
            message=f"requests wait half of the time, and {np.median(running):.0f} run: the concurrency is what the "
            "server lets in, and the rate what it could do, not what the clients want",
            remedy="maitre tune finds out whether a higher limit helps; take the demand from the gateway's log",
        )
    grown = _growth(running) + _growth(waiting)
    if grown > max(_LEAST_GROWN, _GROWN * served.prompt.count):
        yield Finding(
            code="queue-grew",
            message=f"about {grown:,.0f} more requests are in flight at the end of the window than at its start: more "
            "arrived than finished",
            remedy="take the rate as a lower bound",
        )


def _growth(values: FloatArray) -> float:
    """From the first tenth of the window to its last."""
    tenth = max(1, values.size // 10)
    return float(values[-tenth:].mean() - values[:tenth].mean())


def _little_doubts(in_flight_mean: float, little: float) -> Iterator[Finding]:
    if abs(in_flight_mean - little) <= max(_FEW_IN_FLIGHT, _LITTLE * max(in_flight_mean, little)):
        return
    yield Finding(
        code="little-disagrees",
        message=f"rate x mean latency is {little:.1f} requests in flight (Little's law), the gauges say "
        f"{in_flight_mean:.1f}",
        remedy="look for requests longer than the window, for clients that give up (vLLM counts no latency of theirs), "
        "and for servers of which only some metrics are kept",
    )


def _ended_doubts(served: Served) -> Iterator[Finding]:
    total = sum(served.finished.values())
    aborted = served.finished.get("abort", 0.0)
    if total and aborted > _MOST_ABORTED * total:
        yield Finding(
            code="many-aborted",
            message=f"{aborted / total:.0%} of the requests were aborted, and their outputs are shorter for it",
            remedy="look for the cause in the server's log",
        )
    cut = served.finished.get("length", 0.0)
    if total and cut > _MOST_CUT * total:
        yield Finding(
            code="many-cut",
            message=f"{cut / total:.0%} of the outputs ended at max_tokens or at the end of the context",
            remedy="with other limits they would be longer",
        )


def _rebuilding_doubts(served: Served) -> Iterator[Finding]:
    if served.prefix_hit_rate is not None and served.prefix_hit_rate > _LEAST_CACHED:
        yield Finding(
            code="prefixes-not-rebuilt",
            message=f"the prefix cache answers {served.prefix_hit_rate:.0%} of the prompt tokens; requests drawn from "
            "histograms share no prefix, so a simulation computes these tokens too",
            remedy="take per-request traffic with prefix hashes, or measure on the server itself",
        )


def _width_doubts(served: Served) -> Iterator[Finding]:
    wide = [name for name, lengths in (("prompt", served.prompt), ("output", served.output)) if _is_wide(lengths)]
    if not wide:
        return
    buckets = json.dumps({"request_tokens": finer_buckets(served.prompt, served.output)}, separators=(",", ":"))
    yield Finding(
        code="wide-bounds",
        message=f"the {' and '.join(wide)} buckets leave percentiles open by a factor of two and more",
        remedy=f"vLLM 0.32 and later: --custom-histogram-buckets '{buckets}'",
    )


def _is_wide(lengths: Histogram) -> bool:
    bounds = [percentile_bounds(lengths, percent) for percent in (50, 90, 95, 99)]
    return any(one.high is None or one.high > max(_WIDEST * one.low, one.low + 10) for one in bounds)


def finer_buckets(*histograms: Histogram) -> list[int]:
    """Bounds 25 % apart over the range of most lengths, for `--custom-histogram-buckets`.

    Args:
        histograms: not empty, in tokens.
    """
    low = min(percentile_bounds(histogram, _LEAST_PERCENT).low for histogram in histograms)
    high = max(_highest(histogram) for histogram in histograms)
    bounds, bound = [], max(low, 1.0)
    while bound < high * _STEP:
        bounds.append(round(bound))
        bound *= _STEP
    return sorted(set(bounds))


def _highest(histogram: Histogram) -> float:
    high = percentile_bounds(histogram, 100).high
    return float(histogram.upper[-2]) * _OPEN if high is None and histogram.upper.size > 1 else high or 1.0
