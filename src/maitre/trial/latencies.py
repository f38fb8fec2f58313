"""Latencies of a run, and their percentiles: the smallest value that reaches the rank, never interpolated."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from maitre.records import Percentiles
from maitre.simulator.step import TOKEN_BUDGET
from maitre.trial.run import Run


def weighted_quantiles(values: NDArray[Any], weights: NDArray[Any], percents: tuple[int, ...]) -> list[float] | None:
    """The smallest values at or below which at least so many percent of the weight lie.

    Args:
        values: shape (k,).
        weights: shape (k,), ≥ 0.
        percents: 0 to 100.

    Returns:
        One value for each of `percents`; None if there is no weight.
    """
    order = np.argsort(values, kind="stable")
    ranks = np.cumsum(weights[order])
    if not len(ranks) or ranks[-1] == 0:
        return None
    positions = np.searchsorted(ranks, np.array(percents) * ranks[-1] / 100)
    found: list[float] = values[order][positions].tolist()
    return found


def weighted_percentiles(values: NDArray[Any], weights: NDArray[Any]) -> Percentiles | None:
    """Percentiles of values that occur `weights` times each.

    Args:
        values: shape (k,), seconds.
        weights: shape (k,), counts.

    Returns:
        None if no value occurs.
    """
    found = weighted_quantiles(values, weights, (50, 95, 99, 100))
    return None if found is None else Percentiles(p50=found[0], p95=found[1], p99=found[2], max=found[3])


def percentiles(values: NDArray[Any]) -> Percentiles | None:
    """Percentiles of values, shape (k,), in seconds; None if there are none."""
    return weighted_percentiles(values, np.ones(len(values), dtype=np.int64))


def times_per_output_token(run: Run) -> NDArray[np.float64]:
    """(last token − first token) / (output tokens − 1) of every request with two output tokens or more, in seconds."""
    several = run.output_tokens > 1
    times: NDArray[np.float64] = (run.last_token_s - run.first_token_s)[several] / (run.output_tokens[several] - 1)
    return times


def token_gaps(run: Run) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Inter-token latencies over all tokens but each request's first: values in seconds and how often each occurs.

    All sequences of a step get their tokens together, so a step counts once for each of its steady decodes. The ramp of
    a burst is left out: it is no traffic that anybody serves.
    """
    weights = run.num_steady_decodes.astype(np.int64)
    gaps = run.other_gaps
    if run.is_burst:
        ramp = _num_ramp_steps(run.bound_by)
        weights[:ramp] = 0
        gaps = gaps[gaps[:, 0] >= ramp]
    other_s = run.step_end_s[gaps[:, 1]] - run.step_end_s[gaps[:, 0]]
    return np.concatenate([run.steps_s, other_s]), np.concatenate([weights, np.ones(len(gaps), dtype=np.int64)])


def _num_ramp_steps(bound_by: NDArray[Any]) -> int:
    """Steps up to the first that the token budget does not bind: until then the burst's prompts are being computed."""
    is_past = bound_by != TOKEN_BUDGET
    return int(is_past.argmax()) if is_past.any() else 0
