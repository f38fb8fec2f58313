"""One setting under several client loads: is it saturated, and did the client send what it says?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from maitre.bench_results.doubt import Doubt
from maitre.bench_results.records import BenchmarkResult, Run

_STILL_GROWING = 0.5
"""Throughput that rises at least with this power of the concurrency is far from its plateau."""
_OFFERED_SHARE = 0.95
_CONSTANT_REL = 0.02
_LADDER_STEP = 1.5


def unsaturated(rows: Sequence[BenchmarkResult], numbers: Sequence[int], metric: str) -> str | None:
    """Why the rows do not reach the server's capacity; None when they do, or when nothing says."""
    rated = [rows[row] for row in numbers]
    if rated and all(_keeps_up(run) for run in rated):
        return (
            "every row serves the rate that its client offers, so no limit was tested; offer more (--request-rate inf)"
        )
    best: dict[int, float] = {}
    for row in numbers:
        run = rows[row]
        value = getattr(run, metric)
        closed_loop = run.concurrency is not None and run.request_rate in {None, "inf"}
        if closed_loop and run.concurrency and (run.max_num_seqs or run.concurrency) >= run.concurrency:
            best[run.concurrency] = max(value, best.get(run.concurrency, 0.0))
    levels = sorted(best)
    if len(levels) < 2 or levels[-1] < _LADDER_STEP * levels[-2]:
        return None
    below, top = levels[-2:]
    power = math.log(best[top] / best[below]) / math.log(top / below)
    if power < _STILL_GROWING:
        return None
    growth = latency_growth(rows, numbers)
    latency = f", latency only x{growth:.2f} from {levels[0]} to {top} clients" if growth else ""
    return (
        f"throughput still grows with the client's load, x{best[top] / best[below]:.2f} from {below} to {top} "
        f"requests in flight{latency}: neither limit was tested; raise the client's concurrency until throughput stays"
    )


def latency_growth(rows: Sequence[Run], numbers: Sequence[int]) -> float | None:
    """Mean end-to-end latency at the highest concurrency over that at the lowest; None with fewer than two."""
    latencies = [
        (run.concurrency, run.latencies["mean_e2el_ms"])
        for run in (rows[row] for row in numbers)
        if run.concurrency and run.latencies.get("mean_e2el_ms")
    ]
    if not latencies or min(latencies)[0] == max(latencies)[0]:
        return None
    return max(latencies)[1] / min(latencies)[1]


def unsent_load(rows: Sequence[BenchmarkResult], metric: str) -> dict[int, Doubt]:
    """Rows whose client says more concurrency than the row before, with the same throughput and the same latency.

    By Little's law requests in flight are throughput x latency: when neither moves, the client sent no more.
    """
    ladders: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for row, run in enumerate(rows):
        if run.concurrency and getattr(run, metric) and run.trust:
            ladders[_setting_of(run)].append(row)
    found: dict[int, Doubt] = {}
    for ladder in ladders.values():
        ladder.sort(key=lambda row: rows[row].concurrency or 0)
        for start, lower in enumerate(ladder):
            for upper in ladder[start + 1 :]:
                if upper not in found and _is_same_load(rows[lower], rows[upper], metric):
                    found[upper] = _unsent(rows, lower, upper)
    return found


def _unsent(rows: Sequence[Run], lower: int, upper: int) -> Doubt:
    low, high = rows[lower].concurrency, rows[upper].concurrency
    key, value = _latency_of(rows[upper]) or ("latency", 0.0)
    return Doubt(
        "client-never-sent-it",
        f"row {upper} at concurrency {high} has the throughput and the {key.removesuffix('_ms')} ({value:g} ms) of row "
        f"{lower} at {low}: by Little's law no more than at {low} was in flight",
        "raise the client's own limits (requests in all, connections, open files), then measure again",
    )


def _is_same_load(lower: Run, upper: Run, metric: str) -> bool:
    if (upper.concurrency or 0) < _LADDER_STEP * (lower.concurrency or 1):
        return False
    one, other = _latency_of(lower), _latency_of(upper)
    if one is None or other is None or one[0] != other[0] or not one[1]:
        return False
    pairs = ((getattr(lower, metric), getattr(upper, metric)), (one[1], other[1]))
    return all(abs(b / a - 1) <= _CONSTANT_REL for a, b in pairs)


def _latency_of(run: Run) -> tuple[str, float] | None:
    """A latency that grows with the requests in flight."""
    for key in ("mean_e2el_ms", "median_e2el_ms", "p99_e2el_ms", "p95_e2el_ms"):
        if key in run.latencies:
            return key, run.latencies[key]
    return None


def _setting_of(run: Run) -> tuple[object, ...]:
    return run.max_num_seqs, run.max_num_batched_tokens, tuple(sorted((k, str(v)) for k, v in run.settings.items()))


def _keeps_up(run: Run) -> bool:
    rate, achieved = run.request_rate, run.requests_per_s
    return isinstance(rate, float | int) and achieved is not None and achieved >= _OFFERED_SHARE * rate
