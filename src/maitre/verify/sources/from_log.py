"""A server's log: the load as time series, the setting it started with, and what failed while it served."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from maitre.errors import InputError
from maitre.metric_series import MetricSeries
from maitre.verify.evidence import LogFailure
from maitre.vllm.iteration_lines import IterationTable
from maitre.vllm.serving_failures import FailureReader
from maitre.vllm.startup_log import read_startups
from maitre.vllm.startup_log_lines import read_line, text_lines
from maitre.vllm.startup_log_record import Startup
from maitre.vllm.stats_log import StatsReader, StatsSample, stats_series

_HINT = (
    "give the log of `vllm serve` with its lines 'Avg prompt throughput: …'; they are off with --disable-log-stats and "
    "with several API server processes"
)
_ROUTINE = (
    " HTTP/1.1", "Received request ", "Added request ", "Finished request ", "Generated response ", " details: prompt",
    " context requests, ",
)  # fmt: skip
"""Lines of the load, of which there may be millions and which may quote users; no failure is told in them."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadLog:
    """All that a log says."""

    series: tuple[MetricSeries, ...]
    samples: tuple[StatsSample, ...]
    """The statistics lines in their order."""
    iterations: IterationTable
    """Steps, where they are logged."""
    startups: tuple[Startup, ...]
    """In the order in which they begin; the last one serves."""
    failures: tuple[LogFailure, ...]
    """After a start."""
    notes: tuple[str, ...] = ()


def read_log(chunks: Iterable[bytes], name: str, until_s: float | None = None) -> ReadLog:
    """Read a log once, in bounded memory but for the lines that count.

    Args:
        chunks: its bytes, cut anywhere and unpacked.
        name: what to call it in a message.
        until_s: a moment that it does not go past, such as the file's change; tells the year of its stamps.

    Raises:
        InputError: neither a start-up nor statistics nor a failure in it.
    """
    stats, failures = StatsReader(), FailureReader()
    startups: list[Startup] = []
    notes: list[str] = []
    try:
        startups = read_startups(_watched(chunks, stats, failures), name)
    except InputError as error:
        notes.append(f"limits and pool are not known from the log ({error.args[0]})")
    log = stats.log(until_s)
    series = stats_series(log)
    if not (series or startups or len(log.iterations) or failures.failures()):
        raise InputError(f"{name}: no vLLM log, or none with anything about its load", _HINT)
    return ReadLog(
        series=tuple(series),
        samples=log.samples,
        iterations=log.iterations,
        startups=tuple(startups),
        failures=tuple(LogFailure(failure.code, failure.message) for failure in failures.failures()),
        notes=tuple(notes),
    )


def _watched(chunks: Iterable[bytes], stats: StatsReader, failures: FailureReader) -> Iterator[bytes]:
    """The lines that may tell of a start; all of them are shown to the other two readers on their way."""
    for text in text_lines(chunks):
        stats.add(text)
        if not any(words in text for words in _ROUTINE):
            for line in read_line(text):
                failures.add(line.message)
            yield f"{text}\n".encode(errors="replace")
