"""What is compared before and after a change, in which direction it is better, and from how much on it matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from maitre.metric_series import Histogram
from maitre.units import format_seconds
from maitre.verify.before_after.matched_pairs import MatchedPairs
from maitre.verify.before_after.paired_change import Figure
from maitre.verify.window_figures import WindowFigures

TAIL_SHARE = 0.05
"""The tail begins at the bound of a bucket beyond which about this share lies."""
NOTHING = 1e-9
"""A share that is none."""
SMALLEST_RATIO = 0.03
"""Of a rate or a latency; smaller changes are within what a server drifts by from day to day."""
SMALLEST_SHARE = 0.01
"""Of requests or tokens in the tail, and of preemptions a request, in absolute terms …"""
SMALLEST_PART = 0.25
"""… and of the tail itself: 3 % more latency already move a tail of 5 % by a third where it is narrow (σ 0.2)."""
SMALLEST_WAITING = 1.0
"""Requests."""

MeasureName = Literal[
    "output-tokens-per-s", "ttft-mean", "ttft-tail", "itl-mean", "itl-tail", "queue-time-mean",
    "preemptions-per-request", "waiting",
]  # fmt: skip


Scale = Literal["ratio", "share", "amount"]
"""Compared by ratio; by difference between shares of 1; by difference."""


class Measure(NamedTuple):
    """One figure of a sub-window, and how it is compared."""

    name: MeasureName
    title: str
    figure: Figure
    scale: Scale
    smallest: float
    """Change that matters, as a ratio - 1 or as a difference."""
    decides: bool
    """Whether the verdict rests on it."""
    more_is_better: bool = False


def measures(pairs: MatchedPairs, ttft_bound_s: float | None, itl_bound_s: float | None) -> tuple[Measure, ...]:
    """What can be said of these pairs.

    Throughput decides where the server, not the arrivals, sets it. Time to first token says nothing where a backlog
    grows.

    Args:
        pairs: matched sub-windows.
        ttft_bound_s: where the tail of the time to first token begins, rounded up to a bucket's bound; None: where
            about 5 % lie beyond it.
        itl_bound_s: the same of the inter-token latency.
    """
    is_saturated = pairs.load == "saturated"
    speed = Measure(
        "output-tokens-per-s", "output tokens/s", lambda w: w.output_tokens_per_s, scale="ratio",
        smallest=SMALLEST_RATIO, decides=pairs.load != "rate", more_is_better=True,
    )  # fmt: skip
    itl = _latency(pairs, "itl", itl_bound_s, decides=not is_saturated)
    preemptions = Measure(
        "preemptions-per-request", "preemptions a request", lambda w: w.preemptions_per_request, scale="amount",
        smallest=SMALLEST_SHARE, decides=False,
    )  # fmt: skip
    if is_saturated:
        return (speed, *itl, preemptions)
    queue = Measure(
        "queue-time-mean", "mean queue time (s)", lambda w: _mean(w.queue_time), scale="amount",
        smallest=_smallest_queue_s(pairs), decides=False,
    )  # fmt: skip
    waiting = Measure(
        "waiting", "requests waiting", lambda w: w.waiting, scale="amount", smallest=SMALLEST_WAITING, decides=False
    )
    return (speed, *_latency(pairs, "ttft", ttft_bound_s, decides=True), *itl, queue, preemptions, waiting)


def share_above(histogram: Histogram | None, bound: float) -> float | None:
    """The share of observations above a bucket's bound; None where no bucket ends there, or nothing was observed."""
    if histogram is None or histogram.count <= 0:
        return None
    ends = np.flatnonzero(histogram.upper == bound)
    return float(histogram.counts[ends[0] + 1 :].sum() / histogram.count) if len(ends) else None


def tail_bound(histograms: Sequence[Histogram], asked: float | None = None) -> float | None:
    """The bucket's bound at or above the asked one, else that beyond which about TAIL_SHARE lies; None without any.

    Args:
        histograms: of the sub-windows; the bounds of the first one count.
        asked: in seconds.
    """
    counted = [one for one in histograms if one.count > 0]
    if not counted:
        return None
    bounds = counted[0].upper[:-1]
    if asked is not None:
        bounds = bounds[bounds >= asked * (1 - 1e-9)]
        return float(bounds[0]) if len(bounds) else None
    alike = [one for one in counted if np.array_equal(one.upper, counted[0].upper)]
    shares = np.mean([1 - one.counts.cumsum() / one.count for one in alike], axis=0)[:-1]
    if not (shares > NOTHING).any():
        return None
    return float(bounds[np.abs(np.log(np.maximum(shares, NOTHING) / TAIL_SHARE)).argmin()])


def _latency(
    pairs: MatchedPairs, kind: Literal["ttft", "itl"], asked: float | None, *, decides: bool
) -> tuple[Measure, ...]:
    """Mean and tail of a latency."""
    title, above = (
        ("time to first token", "requests with a first token after more than")
        if kind == "ttft"
        else ("inter-token latency", "tokens that took more than")
    )
    mean_name: MeasureName = "ttft-mean" if kind == "ttft" else "itl-mean"
    tail_name: MeasureName = "ttft-tail" if kind == "ttft" else "itl-tail"

    def histogram(window: WindowFigures) -> Histogram | None:
        return window.ttft if kind == "ttft" else window.itl

    mean = Measure(
        mean_name, f"mean {title} (s)", lambda w: _mean(histogram(w)), scale="ratio", smallest=SMALLEST_RATIO,
        decides=decides,
    )  # fmt: skip
    histograms = [one for w in (*pairs.before, *pairs.after) if (one := histogram(w)) is not None]
    bound = tail_bound(histograms, asked)
    if bound is None:
        return (mean,)
    tail = Measure(
        tail_name, f"{above} {format_seconds(bound)}", lambda w: share_above(histogram(w), bound),
        scale="share", smallest=max(SMALLEST_SHARE, SMALLEST_PART * _mean_share(histograms, bound)), decides=decides,
    )  # fmt: skip
    return mean, tail


def _mean_share(histograms: Sequence[Histogram], bound: float) -> float:
    """Above a bound, over histograms that have observations; 0 without any."""
    shares = [share for one in histograms if (share := share_above(one, bound)) is not None]
    return float(np.mean(shares)) if shares else 0.0


def _mean(histogram: Histogram | None) -> float | None:
    return None if histogram is None else histogram.mean


def _smallest_queue_s(pairs: MatchedPairs) -> float:
    """Queue time is a part of the time to first token, and matters by what it adds to that."""
    means = [mean for w in (*pairs.before, *pairs.after) if (mean := _mean(w.ttft)) is not None]
    return SMALLEST_RATIO * float(np.mean(means)) if means else 0.01
