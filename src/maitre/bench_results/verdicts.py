"""What rows of one model, one request list and one client load say about the two limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from maitre.bench_results.groups import dials_of
from maitre.bench_results.little import in_flight_at_most
from maitre.bench_results.points import Noise, group_points, mean_of
from maitre.bench_results.records import BenchmarkResult, GroupVerdict, SurfaceVerdict

_LOWER_ITL_REL = 0.10
"""Tail latencies of single runs differ by this much without meaning anything."""


def judge_group(rows: Sequence[BenchmarkResult], numbers: Sequence[int], metric: str, noise: Noise) -> GroupVerdict:
    """Verdict, best and worse rows of one group.

    Args:
        rows: the whole table.
        numbers: the group's rows; each has `metric`.
        metric: the throughput to rank by.
        noise: which difference counts.
    """
    compared = _at_one_load(rows, numbers)
    if len(dials_of(rows, compared)) < 2:
        one = "the rows are one setting of the two limits, so they compare none"
        return GroupVerdict(verdict=None, best_rows=(), reason=f"{one}; import runs with other settings, too")
    points = group_points(rows, compared)
    speeds = [mean_of(rows, point, metric) for point in points]
    floor = max(speeds) * (1 - noise.margin_rel)
    best = sorted(row for point, speed in zip(points, speeds, strict=True) if speed >= floor for row in point)
    worse = sorted(set(compared) - set(best))
    verdict, reason = _decide(rows, best, worse, metric, noise)
    return GroupVerdict(
        verdict=verdict,
        best_rows=tuple(best),
        separable_worse_rows=tuple(worse),
        recommend=recommend(rows, best),
        reason=reason,
    )


def recommend(rows: Sequence[BenchmarkResult], best: Sequence[int]) -> dict[str, int] | None:
    """The dials to choose among equals: clearly lower tail latency between tokens first, then the smaller limits."""
    tails = {row: tail for row in best if (tail := _tail_ms(rows[row])) is not None}
    lowest = min(tails.values(), default=0.0)
    if len(tails) == len(best):
        best = [row for row in best if tails[row] <= lowest * (1 + _LOWER_ITL_REL)]
    chosen = min(best, key=lambda row: _dials(rows[row]), default=None)
    if chosen is None:
        return None
    dials = {name: getattr(rows[chosen], name) for name in ("max_num_seqs", "max_num_batched_tokens")}
    return {name: value for name, value in dials.items() if value is not None} or None


def _decide(
    rows: Sequence[BenchmarkResult], best: Sequence[int], worse: Sequence[int], metric: str, noise: Noise
) -> tuple[SurfaceVerdict, str]:
    margin = f"within {noise.margin_rel:.1%}"
    cap = _client_cap(rows, best)
    slots = sorted({slots for row in best if (slots := rows[row].max_num_seqs)})
    if cap is not None and len(slots) > 1:
        return "client-capped", (
            f"max_num_seqs {', '.join(map(str, slots))} are one setting in effect: the client never had more than "
            f"{cap} requests in flight. A larger limit is untested: raise the client's concurrency above {slots[-1]}"
        )
    if not worse:
        rates = {rate for row in best if isinstance(rate := rows[row].request_rate, float | int)}
        fixed = "; the client's fixed request rate may be what makes them equal (--request-rate inf)" if rates else ""
        return "flat", f"all rows are equal {margin} in {metric}: keep what you have, or the smallest limits{fixed}"
    largest = max((rows[row].max_num_seqs or 0 for row in (*best, *worse)), default=0)
    if slots == [largest] and cap is None and _client_wants_more(rows, best):
        return "seq-capped", (
            f"throughput still grows at the largest max_num_seqs, {largest}, and the client has more requests in "
            "flight: measure larger values, too"
        )
    hint = f"; the client had at most {cap} in flight, so larger max_num_seqs are untested" if cap is not None else ""
    return "best-cell", f"{_rows(best)} {'is' if len(best) == 1 else 'are'} best, the others fall behind by more{hint}"


def _at_one_load(rows: Sequence[BenchmarkResult], numbers: Sequence[int]) -> list[int]:
    """The rows of the highest client load that compares several settings; all when loads do not differ."""
    loads: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for row in numbers:
        loads[rows[row].concurrency, rows[row].request_rate].append(row)
    several = [members for members in loads.values() if len(dials_of(rows, members)) > 1]
    return max(several, key=lambda members: rows[members[0]].concurrency or 0, default=[])


def _client_cap(rows: Sequence[BenchmarkResult], best: Sequence[int]) -> int | None:
    """The most requests that a client had in flight, when no best row's max_num_seqs lies below."""
    caps = [in_flight_at_most(rows[row]) for row in best]
    pairs = [(rows[row].max_num_seqs, cap) for row, cap in zip(best, caps, strict=True)]
    known = [(slots, cap) for slots, cap in pairs if slots is not None]  # the others run at vLLM's default
    if not known or any(cap is None or slots < cap for slots, cap in known):
        return None
    return max(cap for cap in caps if cap is not None)


def _client_wants_more(rows: Sequence[BenchmarkResult], best: Sequence[int]) -> bool:
    return any((in_flight_at_most(rows[row]) or 0) > (rows[row].max_num_seqs or 0) for row in best)


def _tail_ms(run: BenchmarkResult) -> float | None:
    for key in ("p99_itl_ms", "p99_tpot_ms"):
        if key in run.latencies and key not in run.ignore:
            return run.latencies[key]
    return None


def _dials(run: BenchmarkResult) -> tuple[float, float]:
    return run.max_num_seqs or float("inf"), run.max_num_batched_tokens or 0


def _rows(numbers: Sequence[int]) -> str:
    return f"row{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
