"""All that a log says of a server's load, as samples in order and as time series under the names of its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from maitre.metric_series import FloatArray, MetricSeries
from maitre.vllm import iteration_lines, stats_lines
from maitre.vllm.iteration_lines import IterationLine, IterationTable, iteration_table, parse_iteration
from maitre.vllm.log_times import Stamp, stamp_of, times_s
from maitre.vllm.startup_log_lines import read_line, text_lines
from maitre.vllm.stats_lines import StatsLine, parse_stats, parse_v0_hit_rate, parse_v0_preemptions, split_stats

LOWER_BOUND = "lower_bound"
"""The label of a preemption counter that was read from V0's warnings, of which every 50th is logged, or from steps."""
AGGREGATED = "aggregated_engines"
"""The label of series that sum up several engines in the log itself: how many. Their KV usage is the mean."""

_V0_HIT_RATE = "Prefix cache hit rate: GPU: "
_V0_WARNING = "total_num_cumulative_preemption="
_MARKS = (stats_lines.MARK, iteration_lines.MARK, _V0_HIT_RATE, _V0_WARNING)
_QUOTING = ("Received request ", "Generated response ", " details: prompt")
"""Lines that show users' texts, which may say anything."""

_GAUGES: dict[str, Callable[[StatsLine], float | None]] = {
    "vllm:num_requests_running": lambda line: line.num_running,
    "vllm:num_requests_waiting": lambda line: line.num_waiting,
    "vllm:num_requests_swapped": lambda line: line.num_swapped,
    "vllm:kv_cache_usage_perc": lambda line: line.kv_usage,
    "vllm:avg_prompt_throughput_toks_per_s": lambda line: line.prompt_tokens_per_s,
    "vllm:avg_generation_throughput_toks_per_s": lambda line: line.generation_tokens_per_s,
    "vllm:gpu_prefix_cache_hit_rate": lambda line: line.prefix_hit_rate,
}


class StatsSample(NamedTuple):
    """One statistics line, and when and where it was written."""

    time_s: float
    """Since the epoch; NaN where the line has no time."""
    place: str
    """Pod, container or host, where the log's carrier names it."""
    stats: StatsLine


class CumulatedPreemptions(NamedTuple):
    """One warning of V0."""

    time_s: float
    place: str
    num_preemptions: int
    """So far, at least."""


@dataclass(frozen=True, slots=True, eq=False)
class StatsLog:
    """What a log says of the load."""

    samples: tuple[StatsSample, ...]
    hit_rates: tuple[tuple[float, str, float], ...]
    """V0's: time in seconds, place, 0 to 1."""
    preemptions: tuple[CumulatedPreemptions, ...]
    """V0's."""
    iterations: IterationTable


class _Found(NamedTuple):
    stamp: Stamp | None
    place: str
    what: Any


class StatsReader:
    """Takes a log line by line, beside whatever else reads it; memory is bounded by the number of lines that count."""

    def __init__(self) -> None:
        self._found: list[_Found] = []

    def add(self, text: str) -> None:
        """Read one physical line, with all its prefixes."""
        if any(mark in text for mark in _MARKS) and not any(words in text for words in _QUOTING):
            self._found += _in_line(text)

    def log(self, until_s: float | None = None) -> StatsLog:
        """All that was read.

        Args:
            until_s: a moment that the log does not go past; see `maitre.vllm.log_times.times_s`.
        """
        time_s = times_s([one.stamp for one in self._found], until_s)
        timed = [(float(at), one.place, one.what) for at, one in zip(time_s, self._found, strict=True)]
        steps = [(at, what) for at, _, what in timed if isinstance(what, IterationLine)]
        return StatsLog(
            samples=tuple(StatsSample(*one) for one in timed if isinstance(one[2], StatsLine)),
            hit_rates=tuple(one for one in timed if isinstance(one[2], float)),
            preemptions=tuple(CumulatedPreemptions(*one) for one in timed if isinstance(one[2], int)),
            iterations=iteration_table([step for _, step in steps], np.array([at for at, _ in steps])),
        )


def read_stats_log(chunks: Iterable[bytes], until_s: float | None = None) -> StatsLog:
    """Everything about the load in a log, in its order.

    Args:
        chunks: the log's bytes, cut anywhere.
        until_s: a moment that the log does not go past; see `maitre.vllm.log_times.times_s`.
    """
    reader = StatsReader()
    for text in text_lines(chunks):
        reader.add(text)
    return reader.log(until_s)


def stats_series(log: StatsLog) -> list[MetricSeries]:
    """The samples as series, one for each family, place and engine.

    KV usage is under today's name and throughputs under V0's gauges, whatever the version. Preemptions are cumulated
    from the first sample on, with those of the interval before it. Without a word of them they are counted by the steps
    that compute something again, as a lower bound; where that shows none there is no such series, since such a log does
    not say that there were none.
    """
    series: list[MetricSeries] = []
    for labels, samples in _grouped(log.samples):
        time_s = np.array([sample.time_s for sample in samples])
        for name, value_of in _GAUGES.items():
            values = [value_of(sample.stats) for sample in samples]
            series += _series(name, labels, time_s, values)
        gains = [sample.stats.num_preemptions for sample in samples]
        if any(gain is not None for gain in gains):
            cumulated = np.cumsum([gain or 0.0 for gain in gains])
            series += _series("vllm:num_preemptions_total", labels, time_s, [*map(float, cumulated)])
    for place in dict.fromkeys(place for _, place, _ in log.hit_rates):
        rows = [row for row in log.hit_rates if row[1] == place]
        series += _series("vllm:gpu_prefix_cache_hit_rate", _place_label(place), *_columns(rows))
    for place in dict.fromkeys(row.place for row in log.preemptions):
        warned = [row for row in log.preemptions if row.place == place]
        labels = _place_label(place) | {LOWER_BOUND: "true"}
        series += _series("vllm:num_preemptions_total", labels, *_columns(warned))
    if not any(one.name == "vllm:num_preemptions_total" for one in series):
        series += _preemptions_by_steps(log.iterations)
    return series


def _preemptions_by_steps(steps: IterationTable) -> Iterator[MetricSeries]:
    """One series for each engine that computes something again; no series where nothing shows."""
    for engine in dict.fromkeys(map(str, steps.engine)):
        counts = steps.preemptions_at_least(engine)
        if counts[-1] > 0:
            labels = {LOWER_BOUND: "true"} | ({"engine": engine} if engine else {})
            yield from _series("vllm:num_preemptions_total", labels, steps.time_s[steps.engine == engine], [*counts])


def _in_line(text: str) -> Iterator[_Found]:
    place = ""
    for part in split_stats(text):
        for line in read_line(part, place):
            place = line.source
            if (what := _parse(line.message)) is not None:
                yield _Found(stamp_of(part), place, what)


def _parse(message: str) -> Any:
    readers = (parse_stats, parse_iteration, parse_v0_hit_rate, parse_v0_preemptions)
    return next((found for read in readers if (found := read(message)) is not None), None)


def _grouped(samples: Sequence[StatsSample]) -> Iterator[tuple[dict[str, str], list[StatsSample]]]:
    groups: dict[tuple[tuple[str, str], ...], list[StatsSample]] = {}
    for sample in samples:
        labels = _place_label(sample.place)
        if sample.stats.num_engines is not None:
            labels[AGGREGATED] = str(sample.stats.num_engines)
        elif sample.stats.engine:
            labels["engine"] = sample.stats.engine
        groups.setdefault(tuple(labels.items()), []).append(sample)
    yield from ((dict(labels), group) for labels, group in groups.items())


def _place_label(place: str) -> dict[str, str]:
    return {"instance": place} if place else {}


def _columns(rows: Sequence[tuple[float, str, float]] | Sequence[CumulatedPreemptions]) -> tuple[FloatArray, list[Any]]:
    return np.array([row[0] for row in rows]), [row[2] for row in rows]


def _series(
    name: str, labels: dict[str, str], time_s: FloatArray, values: Sequence[float | None]
) -> Iterator[MetricSeries]:
    """A series of the samples that have a value, in ascending time; none without any."""
    known = np.array([value is not None for value in values], dtype=np.bool_)
    if not known.any():
        return
    numbers = np.array([value for value in values if value is not None], dtype=np.float64)
    times = time_s[known]
    order = np.argsort(times, kind="stable") if np.isfinite(times).all() else np.arange(len(times))
    yield MetricSeries(name, labels, times[order], numbers[order])
