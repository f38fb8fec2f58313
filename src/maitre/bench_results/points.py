"""Which rows are one point measured again, which are copies, and how far repeated points spread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from maitre.bench_results.doubt import Doubt
from maitre.bench_results.little import in_flight_at_most
from maitre.bench_results.records import BenchmarkResult, Run

ASSUMED_REL = 0.02
"""Margin when nothing was measured twice: two runs of a quiet server differ by about 1 %."""
_COPY_DIGITS = 7
"""Equal figures with fewer significant digits in all may be equal by chance."""
NOT_REPEATED_REL = 0.2
"""Rows of one setting that spread further did not measure the same thing."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How much of a difference means nothing."""

    spread_rel: float | None
    """Largest (maximum - minimum) / mean of a repeated point."""
    margin_rel: float
    """Rows that differ by less, relative to the better one, count as equal."""
    source: str


def point_of(run: Run) -> tuple[object, ...]:
    """What a row really measured: all slots above the client's concurrency are one setting."""
    cap = in_flight_at_most(run)
    slots = min(run.max_num_seqs, cap) if run.max_num_seqs and cap else run.max_num_seqs
    others = tuple(sorted((name, str(value)) for name, value in run.settings.items()))
    return slots, run.max_num_batched_tokens, others, run.concurrency, run.request_rate, run.stage


def group_points(rows: Sequence[Run], numbers: Sequence[int]) -> list[list[int]]:
    """The row numbers of each point, in order of first appearance."""
    points: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for row in numbers:
        points[point_of(rows[row])].append(row)
    return list(points.values())


def find_copies(rows: Sequence[Run]) -> list[list[int]]:
    """Groups of rows whose figures agree to the last digit: one was copied, not measured."""
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for row, run in enumerate(rows):
        rates = (run.requests_per_s, run.total_tokens_per_s, run.output_tokens_per_s, run.tokens_per_s, run.duration_s)
        figures = (*rates, *(value for _, value in sorted(run.latencies.items())))
        if sum(_digits(value) for value in figures if value) >= _COPY_DIGITS:
            alike[figures].append(row)
    return [group for group in alike.values() if len(group) > 1]


def measure_noise(rows: Sequence[BenchmarkResult], points: Sequence[Sequence[int]], metric: str) -> Noise:
    """The noise floor from points that were measured more than once; assumed when there is none.

    The margin is Tukey's honestly significant difference of single runs, q(0.95; points, dof) * s, with s pooled over
    the repeated points: the best of many equal points looks better than it is. A single pair says little about s: then
    the margin is twice its spread, and at least the assumed one.
    """
    from scipy.stats import studentized_range  # noqa: PLC0415 - half a second, and only tables need it

    measured = [np.array([getattr(rows[row], metric) for row in point], float) for point in points]
    repeated = [values for values in measured if len(values) > 1 and _spread(values) <= NOT_REPEATED_REL]
    if not repeated:
        return Noise(None, ASSUMED_REL, f"no point was measured twice: {ASSUMED_REL:.0%} is assumed")
    spread = max(map(_spread, repeated))
    freedom = sum(len(values) - 1 for values in repeated)
    squares = sum(float(((values / values.mean() - 1) ** 2).sum()) for values in repeated)
    source = f"points measured again spread over {spread:.2%} ({freedom + len(repeated)} rows)"
    if freedom == 1:
        return Noise(spread, max(ASSUMED_REL, 2 * spread), f"{source}; one pair says little, so at least 2 % counts")
    q = float(studentized_range.ppf(0.95, max(2, len(points)), freedom))
    return Noise(spread, q * (squares / freedom) ** 0.5, source)


def check_repeats(rows: Sequence[BenchmarkResult], points: Sequence[Sequence[int]], metric: str) -> Iterator[Doubt]:
    """Points whose repeats disagree so much that something else must have changed."""
    for point in points:
        values = np.array([getattr(rows[row], metric) for row in point], float)
        if _spread(values) > NOT_REPEATED_REL:
            yield Doubt(
                "repeats-disagree",
                f"rows {', '.join(map(str, point))} are one setting, but {metric} runs from {values.min():,.1f} to "
                f"{values.max():,.1f}: something else changed, or the server has two states",
                "name in a column what differs, or measure the point again until it is stable",
            )


def mean_of(rows: Sequence[Run], point: Sequence[int], metric: str) -> float:
    """Mean of a figure over the rows of a point."""
    return fmean(getattr(rows[row], metric) for row in point)


def _spread(values: NDArray[np.float64]) -> float:
    return float(np.ptp(values) / values.mean())


def _digits(value: float) -> int:
    return len(f"{value:.9g}".partition("e")[0].replace(".", "").strip("0"))
