"""Latency targets held against a run.

Two answers, because they are two questions. A *target* is met if its percentile of its own population, all requests or,
for the inter-token latency, all tokens, is within its limit. A *request* attains the targets if it is within the limits
of all of them at once, whatever their percentiles: only that can be counted, and goodput counts it (DistServe, OSDI'24,
section 1: requests a second that adhere to the limits). A request has many inter-token latencies; its own time per
output token stands in for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maitre.records import Attainment, TargetAttainment
from maitre.slo import LatencyTarget
from maitre.trial.latencies import times_per_output_token, token_gaps, weighted_quantiles
from maitre.trial.run import Run

_Z_975 = 1.959964


def attains(run: Run, targets: Sequence[LatencyTarget]) -> Attainment:
    """Hold targets against a run.

    Args:
        run: simulated or measured.
        targets: all must hold; none are always met.
    """
    by_target = tuple(_hold(run, target) for target in targets)
    num_requests = len(run.output_tokens)
    num_attaining = int(np.count_nonzero(_attaining(run, targets)))
    low, high = wilson_interval(num_attaining, num_requests)
    return Attainment(
        met=all(target.met for target in by_target),
        num_attaining=num_attaining,
        share=num_attaining / num_requests,
        share_low=low,
        share_high=high,
        goodput_rps=num_attaining / run.duration_s,
        by_target=by_target,
    )


def wilson_interval(num_hits: int, num_tries: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson, J. American Stat. Association 22, 1927).

    Args:
        num_hits: 0 to `num_tries`.
        num_tries: ≥ 1, taken as independent of each other.
    """
    share, z2 = num_hits / num_tries, _Z_975**2
    centre = share + z2 / (2 * num_tries)
    half_width = _Z_975 * math.sqrt(share * (1 - share) / num_tries + z2 / (4 * num_tries**2))
    scale = 1 + z2 / num_tries
    low = 0.0 if num_hits == 0 else (centre - half_width) / scale
    high = 1.0 if num_hits == num_tries else (centre + half_width) / scale
    return low, high  # where they are 0 and 1, rounding must not say otherwise


def _hold(run: Run, target: LatencyTarget) -> TargetAttainment:
    values, weights = _population(run, target)
    found = weighted_quantiles(values, weights, (target.percent,))
    if found is None:
        return TargetAttainment(target=str(target), value_s=None, share=1.0, met=True)
    share = float(weights[values <= target.limit_s].sum() / weights.sum())
    return TargetAttainment(target=str(target), value_s=found[0], share=share, met=found[0] <= target.limit_s)


def _population(run: Run, target: LatencyTarget) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """All latencies that a target speaks of, and how often each occurs."""
    if target.metric == "itl":
        return token_gaps(run)
    if target.metric == "tpot":
        values = times_per_output_token(run)
    else:
        values = (run.first_token_s if target.metric == "ttft" else run.last_token_s) - run.arrival_s
    return values, np.ones(len(values), dtype=np.int64)


def _attaining(run: Run, targets: Sequence[LatencyTarget]) -> NDArray[np.bool_]:
    """Which requests are within all limits, shape (n,)."""
    latencies = {
        "ttft": run.first_token_s - run.arrival_s,
        "tpot": (run.last_token_s - run.first_token_s) / np.maximum(run.output_tokens - 1, 1),
        "e2e": run.last_token_s - run.arrival_s,
    }
    latencies["itl"] = latencies["tpot"]
    within = np.ones(len(run.output_tokens), dtype=np.bool_)
    for target in targets:
        within &= latencies[target.metric] <= target.limit_s
    return within
