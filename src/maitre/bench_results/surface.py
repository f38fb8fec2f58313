"""A table of runs: which rows may be compared, which are equal within noise, and which setting to choose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from maitre.bench_results.doubt import Doubt
from maitre.bench_results.groups import (
    LOAD,
    MEMORY_SETTINGS,
    check_one_cause,
    check_same_requests,
    context_of,
    split_rows,
)
from maitre.bench_results.judge import check_units
from maitre.bench_results.ladder import latency_growth, unsaturated, unsent_load
from maitre.bench_results.little import outliers
from maitre.bench_results.points import ASSUMED_REL, Noise, check_repeats, find_copies, group_points, measure_noise
from maitre.bench_results.records import BenchmarkResult, GroupVerdict, Surface, SurfaceVerdict
from maitre.bench_results.stages import check_stages
from maitre.bench_results.verdicts import judge_group
from maitre.records import Finding

_METRICS = ("total_tokens_per_s", "output_tokens_per_s", "requests_per_s", "tokens_per_s")


@dataclass(frozen=True, slots=True)
class _Sifted:
    """Rows that may be compared, and why the others may not."""

    metric: str | None
    usable: list[int]
    suspicious: dict[int, list[Doubt]]
    copies: list[list[int]]
    doubts: list[Doubt]


def compare(rows: Sequence[BenchmarkResult]) -> Surface:
    """The surface of some judged runs; row numbers are positions in `rows`."""
    sifted = _sift(rows)
    points = group_points(rows, sifted.usable)
    noise = _measure_noise(rows, points, sifted)
    groups = _judge_groups(rows, sifted, noise)
    whole = _merge(rows, groups, sifted)
    doubts = [*sifted.doubts, *(doubt for doubts in sifted.suspicious.values() for doubt in doubts)]
    fatal = [str(doubt) for doubt in sifted.doubts if doubt.fatal]
    return Surface(
        verdict=whole.verdict,
        best_rows=whole.best_rows,
        recommend=whole.recommend,
        separable_worse_rows=whole.separable_worse_rows,
        suspicious_rows=tuple(sorted(sifted.suspicious)),
        duplicate_rows=tuple(sorted(row for group in sifted.copies for row in group)),
        equal_rows=tuple(sorted(row for point in points if len(point) > 1 for row in point)),
        groups=groups if len(groups) > 1 else {},
        metric=sifted.metric,
        noise_rel=noise.spread_rel,
        margin_rel=noise.margin_rel,
        noise_source=noise.source,
        latency_growth=latency_growth(rows, sifted.usable),
        trust=bool(sifted.usable) and not fatal,
        reasons=(*fatal, whole.reason, *_group_reasons(groups)),
        findings=tuple(Finding(code=d.code, message=d.evidence, remedy=d.remedy) for d in doubts),
        rows=tuple(rows),
    )


def _measure_noise(rows: Sequence[BenchmarkResult], points: Sequence[Sequence[int]], sifted: _Sifted) -> Noise:
    if sifted.metric is None:
        return Noise(None, ASSUMED_REL, "no figure to compare")
    sifted.doubts.extend(check_repeats(rows, points, sifted.metric))
    return measure_noise(rows, points, sifted.metric)


def _group_reasons(groups: dict[str, GroupVerdict]) -> tuple[str, ...]:
    return tuple(f"{name}: {verdict.reason}" for name, verdict in groups.items()) if len(groups) > 1 else ()


def _sift(rows: Sequence[BenchmarkResult]) -> _Sifted:
    suspicious: dict[int, list[Doubt]] = {
        row: [Doubt("row-not-comparable", f"row {row} ({run.source}): {run.reasons[0]}", "it is left out")]
        for row, run in enumerate(rows)
        if not run.trust
    }
    copies = find_copies(rows)
    doubts = [*check_stages(rows), *_check_copies(copies), *_check_one_metric(rows), *check_units(rows)]
    metric = _choose_metric(rows, [row for row in range(len(rows)) if row not in suspicious])
    odd = outliers(rows) | (unsent_load(rows, metric) if metric else {})
    for row, doubt in odd.items():
        suspicious.setdefault(row, []).append(doubt)
    later = {row for group in copies for row in group[1:]}
    usable = [
        row
        for row, run in enumerate(rows)
        if metric and row not in suspicious and row not in later and (getattr(run, metric) or 0) > 0
    ]
    if not usable:
        doubts.append(
            Doubt("nothing-to-compare", "no row has a figure that may be compared", "see the rows", fatal=True)
        )
    doubts += _check_left_out(rows, metric, suspicious)
    return _Sifted(metric, usable, suspicious, copies, doubts)


def _choose_metric(rows: Sequence[BenchmarkResult], numbers: Sequence[int]) -> str | None:
    """The throughput that most rows have; of equals the most telling one.

    Rows of several tools are ranked by totals over duration where all have them: each tool averages its own way.
    """
    if len({rows[row].tool for row in numbers}) > 1:
        for metric in _METRICS[:3]:
            if all(getattr(rows[row], f"recomputed_{metric}") is not None for row in numbers):
                return f"recomputed_{metric}"
    counts = {metric: sum(getattr(rows[row], metric) is not None for row in numbers) for metric in _METRICS}
    best = max(counts, key=lambda metric: counts[metric])
    return best if counts[best] else None


def _judge_groups(rows: Sequence[BenchmarkResult], sifted: _Sifted, noise: Noise) -> dict[str, GroupVerdict]:
    verdicts: dict[str, GroupVerdict] = {}
    if sifted.metric is None:
        return verdicts
    for name, members in split_rows(rows, sifted.usable, context_of(rows)).items():
        sifted.doubts.extend((*check_same_requests(rows, members), *check_one_cause(rows, members)))
        if reason := unsaturated(rows, members, sifted.metric):
            verdicts[name] = GroupVerdict(verdict="not-saturated", reason=reason)
            continue
        for load, rest in split_rows(rows, members, LOAD).items():
            verdicts[", ".join(filter(None, (name, load)))] = judge_group(rows, rest, sifted.metric, noise)
    return verdicts


def _merge(rows: Sequence[BenchmarkResult], groups: dict[str, GroupVerdict], sifted: _Sifted) -> GroupVerdict:
    """One verdict for the table: that of its groups where they agree."""
    if not groups:
        return GroupVerdict(verdict=None, reason="no row has a figure that may be compared")
    verdicts = list(groups.values())
    first = verdicts[0]
    copied = {row for group in sifted.copies for row in group if len(_settings(rows, group)) > 1}
    best = {row for verdict in verdicts for row in verdict.best_rows}
    if copied & best or (copied and not best):
        copies = ", ".join(map(str, sorted(copied)))
        reason = f"rows {copies} carry the same figures to the last digit for different settings; measure them again"
        return first.model_copy(update={"verdict": "duplicate-rows", "recommend": None, "reason": reason})
    capped = sorted(row for row, doubts in sifted.suspicious.items() if doubts[-1].code == "client-never-sent-it")
    if capped and all(verdict.verdict in {None, "not-saturated"} for verdict in verdicts):
        reason = f"{sifted.suspicious[capped[0]][-1]} (rows {', '.join(map(str, capped))})"
        return GroupVerdict(verdict="client-capped", reason=reason)
    if len(verdicts) == 1:
        return first
    return _merge_several(groups)


def _merge_several(groups: dict[str, GroupVerdict]) -> GroupVerdict:
    verdicts = list(groups.values())
    if len({(v.verdict, str(v.recommend)) for v in verdicts}) == 1:
        best = tuple(sorted(row for v in verdicts for row in v.best_rows))
        worse = tuple(sorted(row for v in verdicts for row in v.separable_worse_rows))
        return verdicts[0].model_copy(update={"best_rows": best, "separable_worse_rows": worse})
    names = sorted({name for group in groups for name in re.findall(r"(?:^|, )([^,=]+)=", group)})
    by_memory = any(name in MEMORY_SETTINGS for name in names)
    verdict: SurfaceVerdict | None = "depends-on-memory" if by_memory else None
    reason = f"the answer differs with {' and '.join(names)}, so there is no single best setting"
    return GroupVerdict(verdict=verdict, reason=reason)


def _check_copies(copies: Sequence[Sequence[int]]) -> Iterator[Doubt]:
    for group in copies:
        yield Doubt(
            "duplicate-rows",
            f"rows {', '.join(map(str, group))} agree in every figure to the last digit: one run, copied",
            "measure them again, or leave all but one out",
        )


def _check_one_metric(rows: Sequence[BenchmarkResult]) -> Iterator[Doubt]:
    unlabelled = [row for row, run in enumerate(rows) if any(f.code == "unlabelled-token-rate" for f in run.findings)]
    if unlabelled and len(unlabelled) < len(rows):
        yield Doubt(
            "unlabelled-token-rate",
            f"the token rates of rows {', '.join(map(str, unlabelled))} do not say whether prompt tokens count",
            "they are compared with the others by requests/s only, where both have it",
        )


def _check_left_out(
    rows: Sequence[BenchmarkResult], metric: str | None, suspicious: dict[int, list[Doubt]]
) -> Iterator[Doubt]:
    without = [row for row, run in enumerate(rows) if metric and row not in suspicious and getattr(run, metric) is None]
    if without:
        yield Doubt("other-figure", f"rows {', '.join(map(str, without))} have no {metric}", "they are left out")


def _settings(rows: Sequence[BenchmarkResult], group: Sequence[int]) -> set[object]:
    return {(rows[row].max_num_seqs, rows[row].max_num_batched_tokens, str(rows[row].settings)) for row in group}
