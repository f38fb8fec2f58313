"""What is true of a simulated server in a window, read from its steps and requests and not from its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conditions.metrics import token_gaps
from conditions.served import FloatArray, Served
from maitre.simulator.step import BOUND_BY
from maitre.trial.latencies import weighted_quantiles

MODE_BIN_LOG = 0.2
"""Width of a bin of ln(seconds) in which two modes of the inter-token latency are looked for."""
LEAST_MODE_SHARE = 0.05
DEEPEST_VALLEY = 0.2
"""Bins between two modes hold at most this share of the smaller one's highest bin."""


@dataclass(frozen=True, slots=True)
class Truth:
    """A window of a server; shares are of time, means are over time."""

    bound_share: dict[str, float]
    """By the names of `BOUND_BY`; time with nothing to do counts as `requests`."""
    running: float
    waiting: float
    waiting_share: float
    kv_usage: float
    kv_usage_max: float
    num_preemptions: int
    num_finished: int
    num_arrived: int
    ttft_mean_s: float
    """Of requests that got their first token in the window; NaN without any, as the next ones."""
    e2e_mean_s: float
    itl_p50_s: float
    itl_p99_s: float
    is_itl_bimodal: bool | None
    """Two separated modes; None with fewer than 200 steps."""
    output_tokens_per_s: float
    duration_s: float

    def bound(self, *limits: int) -> float:
        """The share of time that these limits of `maitre.simulator.step` bind."""
        return sum(self.bound_share[BOUND_BY[limit]] for limit in limits)


def truth_of(served: Served, start_s: float, end_s: float) -> Truth:
    """The truth of a window in seconds since the first moment of the traffic."""
    replay, step_end_s = served.replay, served.step_end_s
    state_s = _time_in(np.concatenate([step_end_s, [np.inf]]), start_s, end_s)  # after each step's output
    step_s = _time_in(np.concatenate([[0.0], step_end_s]), start_s, end_s)
    bound_by = replay.columns["bound_by"]
    idle = np.concatenate([[False], served.is_idle_after[:-1]])
    shares = {name: float(step_s[(bound_by == i) & ~idle].sum()) / (end_s - start_s) for i, name in enumerate(BOUND_BY)}
    shares["requests"] += 1 - sum(shares.values())
    inside = (step_end_s > start_s) & (step_end_s <= end_s)
    first, last = inside[replay.first_token_step], inside[replay.last_token_step]
    p50, p99, is_bimodal = _gaps(served, inside)

    def mean(of_step: NDArray[Any]) -> float:
        return float(of_step @ state_s) / (end_s - start_s)

    return Truth(
        bound_share=shares,
        running=mean(served.running),
        waiting=mean(served.waiting),
        waiting_share=mean(served.waiting > 0),
        kv_usage=mean(served.kv_usage),
        kv_usage_max=float(served.kv_usage[inside].max(initial=0.0)),
        num_preemptions=int(replay.columns["num_preemptions"][inside].sum()),
        num_finished=int(last.sum()),
        num_arrived=int(((served.arrival_s > start_s) & (served.arrival_s <= end_s)).sum()),
        ttft_mean_s=_mean((step_end_s[replay.first_token_step] - served.arrival_s)[first]),
        e2e_mean_s=_mean((step_end_s[replay.last_token_step] - served.arrival_s)[last]),
        itl_p50_s=p50,
        itl_p99_s=p99,
        is_itl_bimodal=is_bimodal,
        output_tokens_per_s=float(replay.columns["num_steady_decodes"][inside].sum()) / (end_s - start_s),
        duration_s=end_s - start_s,
    )


def has_two_modes(seconds: FloatArray, weights: FloatArray) -> bool:
    """Whether latencies have two modes with next to nothing between them, on a logarithmic axis.

    Args:
        seconds: shape (k,), positive.
        weights: how often each occurred, shape (k,).
    """
    place = np.floor(np.log(seconds) / MODE_BIN_LOG).astype(np.int64)
    mass = np.bincount(place - place.min(), weights)
    below, total = np.cumsum(mass), mass.sum()
    left = np.maximum.accumulate(mass)
    right = np.maximum.accumulate(mass[::-1])[::-1]
    is_valley = mass <= DEEPEST_VALLEY * np.minimum(left, right)
    is_heavy = np.minimum(below, total - below) >= LEAST_MODE_SHARE * total
    return bool((is_valley & is_heavy).any())


def _gaps(served: Served, inside: NDArray[np.bool_]) -> tuple[float, float, bool | None]:
    steps, seconds, weights = token_gaps(served)
    chosen = inside[steps]
    seconds, weights = seconds[chosen], weights[chosen]
    found = weighted_quantiles(seconds, weights, (50, 99)) or [np.nan, np.nan]
    is_bimodal = has_two_modes(seconds, weights) if len(seconds) >= 200 else None
    return found[0], found[1], is_bimodal


def _time_in(edges_s: FloatArray, start_s: float, end_s: float) -> FloatArray:
    """How much of each span between successive edges lies in the window."""
    inside: FloatArray = np.diff(np.clip(edges_s, start_s, end_s))
    return inside


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else float("nan")
