"""Requests like those that two histograms counted: every bucket keeps its share, and the mean its exact value."""

from __future__ import annotations

from math import floor

import numpy as np
from numpy.typing import NDArray

from maitre.errors import InputError, UsageError
from maitre.metric_series import Histogram
from maitre.records import Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_TAIL = 2.5
"""How far the open bucket may reach over the last bound. vLLM's buckets are the numbers 1, 2, 5, 10, 20, 50 … up to
max_model_len (v1/metrics/buckets.py), so max_model_len is less than 2.5 times the last of them."""
_MAX_TILT = 1e5
_NUM_HALVINGS = 80
_NUM_EXCHANGES = 100


def workload_from_histograms(
    prompt: Histogram,
    output: Histogram,
    num_requests: int,
    seed: int,
    max_model_len: int | None = None,
    *,
    name: str = "histograms",
    source: str = "histograms of prompt and output lengths",
) -> Workload:
    """Draw requests whose lengths fall into the buckets as they were counted.

    Within a bucket the density of a length x is proportional to x^(t - 1), with one t for all buckets, chosen so that
    the requests have the mean that `total` tells, as far as the buckets allow it; t = 0 (even on a logarithmic axis)
    where it is unknown. Prompt and output lengths are taken to be independent: histograms do not say how they go
    together. With `max_model_len` no request is longer; where chance pairs two lengths that are, outputs are exchanged.

    Args:
        prompt: counts of prompt lengths in tokens.
        output: counts of output lengths in tokens.
        num_requests: how many to draw, ≥ 1.
        seed: of a numpy PCG64 generator, ≥ 0: where in the buckets the lengths lie, and how they are paired.
        max_model_len: the most tokens of a request, which bounds the open bucket; without it the open bucket ends at
            2.5 times the last bound, or higher where the mean demands it.
        name: of the workload.
        source: where the histograms come from, in words.

    Raises:
        InputError: a histogram is empty, or counts requests longer than `max_model_len`.
        UsageError: `num_requests` is less than 1.
    """
    if num_requests < 1:
        raise UsageError(f"{num_requests} requests are too few", "ask for 1 or more")
    generator = np.random.default_rng(seed)
    longest = None if max_model_len is None else max_model_len - 1
    prompts = draw_lengths(prompt, num_requests, generator, longest)
    outputs = generator.permutation(draw_lengths(output, num_requests, generator, longest))
    prompts = generator.permutation(prompts)
    if max_model_len is not None:
        outputs = _within(prompts, outputs, max_model_len, generator)
    return Workload(
        name=name,
        source=f"{source}; {num_requests:,} requests drawn (seed {seed}), prompt and output independent",
        prompt_tokens=prompts,
        output_tokens=outputs,
    )


def draw_lengths(
    histogram: Histogram, num_requests: int, generator: np.random.Generator, longest: int | None = None
) -> IntArray:
    """Lengths in tokens of one histogram, shape (num_requests,), ascending, each ≥ 1.

    Args:
        histogram: counts of lengths.
        num_requests: how many, ≥ 1; each stands for an equal share of the counts.
        generator: places each within its share.
        longest: upper end of the open bucket.

    Raises:
        InputError: the histogram is empty, or counts lengths over `longest`.
    """
    if not histogram.count > 0:
        raise InputError("no requests were counted", "take a longer window, or one with traffic")
    low, high = _token_bounds(histogram, longest)
    reached = np.cumsum(histogram.counts) / histogram.count
    ranks = (np.arange(num_requests) + generator.random(num_requests)) / num_requests
    bucket = np.minimum(np.searchsorted(reached, ranks, side="left"), np.flatnonzero(histogram.counts)[-1])
    share = np.clip(1 - (reached[bucket] - ranks) * histogram.count / histogram.counts[bucket], 1e-12, 1 - 1e-12)
    low, high = low[bucket], high[bucket]
    exact = _solve(low + 0.5, high + 0.5, share, histogram.mean)
    tokens = np.clip(np.rint(exact), low + 1, high)
    return _correct(tokens, exact, low + 1, high, histogram.mean).astype(np.int64)


def _token_bounds(histogram: Histogram, longest: int | None) -> tuple[FloatArray, FloatArray]:
    """Whole tokens of each bucket: over `low`, up to `high`."""
    finite = histogram.upper[:-1]
    end = _open_end(histogram) if longest is None else float(longest)
    too_long = histogram.counts[np.append(0.0, finite) >= end].sum()
    if too_long >= 1:
        raise InputError(
            f"{too_long:,.0f} requests are longer than {end:,.0f} tokens, which the model's length does not allow",
            "give the --max-model-len of the server that was measured",
        )
    upper = np.floor(np.append(np.minimum(finite, end), end))
    low = np.append(0.0, upper[:-1])
    return low, np.maximum(upper, low + 1)


def _open_end(histogram: Histogram) -> float:
    """An upper end for the open bucket, where nothing bounds it."""
    finite, counts = histogram.upper[:-1], histogram.counts
    last = float(finite[-1]) if finite.size else 1.0
    end = last * _TAIL
    if counts[-1] > 0 and np.isfinite(histogram.total):
        # the mean of the tail if all others were as long as their buckets allow; twice its distance leaves room
        least_mean = (histogram.total - float(finite @ counts[:-1])) / float(counts[-1])
        end = max(end, 2 * least_mean - last)
    return float(floor(end))


def _solve(low: FloatArray, high: FloatArray, share: FloatArray, mean: float | None) -> FloatArray:
    """Where the lengths lie in their buckets so that they have the mean; the tilt is found by halving."""
    if mean is None:
        return _spread(low, high, share, 0.0)
    down, up = -_MAX_TILT, _MAX_TILT
    for _ in range(_NUM_HALVINGS):
        tilt = (down + up) / 2
        down, up = (down, tilt) if _spread(low, high, share, tilt).mean() > mean else (tilt, up)
    return _spread(low, high, share, (down + up) / 2)


def _spread(low: FloatArray, high: FloatArray, share: FloatArray, tilt: float) -> FloatArray:
    """The quantile `share` of the density x^(tilt - 1) between `low` and `high`."""
    width = np.log(high / low)
    if abs(tilt) < 1e-9:
        return low * np.exp(share * width)
    return low * np.exp(np.logaddexp(np.log1p(-share), np.log(share) + tilt * width) / tilt)


def _correct(
    tokens: FloatArray, exact: FloatArray, least: FloatArray, most: FloatArray, mean: float | None
) -> FloatArray:
    """Undo what rounding did to the sum: one token more or less where rounding erred most, within the buckets."""
    if mean is None:
        return tokens
    wanted = round(mean * tokens.size)
    while missing := wanted - int(tokens.sum()):
        sign = 1 if missing > 0 else -1
        room = np.flatnonzero(tokens < most if missing > 0 else tokens > least)
        if not room.size:
            break
        chosen = room[np.argsort(sign * (tokens - exact)[room], kind="stable")[: abs(missing)]]
        tokens[chosen] += sign
    return tokens


def _within(prompts: IntArray, outputs: IntArray, max_model_len: int, generator: np.random.Generator) -> IntArray:
    """Outputs in another order, so that no request exceeds the model's length; what still does is cut."""
    outputs = outputs.copy()
    for _ in range(_NUM_EXCHANGES):
        over = np.flatnonzero(prompts + outputs > max_model_len)
        if not over.size:
            return outputs
        for row, other in zip(over, generator.integers(outputs.size, size=over.size), strict=True):
            if max(prompts[row] + outputs[other], prompts[other] + outputs[row]) <= max_model_len:
                outputs[[row, other]] = outputs[[other, row]]
    return np.minimum(outputs, max_model_len - prompts)
