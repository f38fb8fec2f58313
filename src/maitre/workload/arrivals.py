"""Requests over time at a rate that is asked for; and more of the same requests, or others like them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maitre.errors import UsageError
from maitre.records import Workload


def own_rate_rps(workload: Workload) -> float | None:
    """The mean rate of a workload's own arrivals in requests/s; None without arrival times."""
    return None if workload.arrival_s is None else (workload.num_requests - 1) / _span_s(workload)


def unit_arrivals(workload: Workload, seed: int) -> NDArray[np.float64]:
    """Arrival times at a mean rate of one request a second, shape (n,), the first at 0.

    They are the workload's own times, made faster or slower; without any they are those of a Poisson process. Times at
    a rate of r requests/s are these over r, so that two rates, and two cells, see the same bunches and pauses.

    Args:
        workload: its lengths are not looked at.
        seed: of the Poisson process.

    Raises:
        UsageError: fewer than two requests, or all of them come at one time.
    """
    if workload.arrival_s is not None:
        return workload.arrival_s * ((workload.num_requests - 1) / _span_s(workload))
    if workload.num_requests < 2:
        raise UsageError("one request has no rate", "take more requests")
    gaps_s = np.random.default_rng(seed).exponential(size=workload.num_requests)
    gaps_s[0] = 0.0
    times: NDArray[np.float64] = np.cumsum(gaps_s) / gaps_s[1:].mean()
    return times


def resampled(workload: Workload, seed: int) -> Workload:
    """Another sample of the same traffic, as far as one sample can tell: requests drawn anew at the times there are.

    Requests are drawn with replacement. Where they share prefixes, whose order matters, they are moved along instead,
    the last ones to the front.

    Args:
        workload: the sample at hand.
        seed: of the draw.
    """
    generator, num_requests = np.random.default_rng(seed), workload.num_requests
    if workload.prefix_hashes is None:
        rows = generator.integers(num_requests, size=num_requests)
    else:
        rows = np.roll(np.arange(num_requests), int(generator.integers(1, num_requests)))
    return _take(workload, rows)


def every_nth(workload: Workload, n: int) -> Workload:
    """Every nth request, all at once."""
    return _take(workload, np.arange(0, workload.num_requests, n)).model_copy(update={"arrival_s": None})


def _take(workload: Workload, rows: NDArray[np.intp]) -> Workload:
    """These requests, in this order, at the times there are."""
    hashes = workload.prefix_hashes
    changes = {
        "prompt_tokens": workload.prompt_tokens[rows],
        "output_tokens": workload.output_tokens[rows],
        "latency_s": None,
        "ttft_s": None,
        "prefix_hashes": None if hashes is None else tuple(hashes[row] for row in rows.tolist()),
    }
    return workload.model_copy(update=changes)


def repeated(workload: Workload, times: int) -> Workload:
    """The same requests over and over, all at once; no copy shares a prefix with another.

    Args:
        workload: its arrivals are left out.
        times: ≥ 1.
    """
    changes = {
        "prompt_tokens": np.tile(workload.prompt_tokens, times),
        "output_tokens": np.tile(workload.output_tokens, times),
        "arrival_s": None,
        "latency_s": None,
        "ttft_s": None,
        "prefix_hashes": _distinct_copies(workload.prefix_hashes, times) if workload.prefix_hashes else None,
    }
    return workload.model_copy(update=changes)


def _distinct_copies(hashes: tuple[tuple[int, ...], ...], times: int) -> tuple[tuple[int, ...], ...]:
    numbers = {value: i for i, value in enumerate(sorted({value for row in hashes for value in row}))}
    return tuple(
        tuple(numbers[value] + copy * len(numbers) for value in row) for copy in range(times) for row in hashes
    )


def _span_s(workload: Workload) -> float:
    assert workload.arrival_s is not None
    span_s = float(workload.arrival_s[-1] - workload.arrival_s[0])
    if span_s <= 0:
        raise UsageError(
            f"all requests of {workload.name} come at one time, which is no rate",
            "name another column with --time-column, or leave the times out with --time-column none",
        )
    return span_s
