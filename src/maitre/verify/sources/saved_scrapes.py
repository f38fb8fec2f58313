"""Saved scrapes: files of one or several of them in a row, or what a Prometheus API answered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import msgspec
import numpy as np

from maitre.errors import InputError
from maitre.metric_series import MetricSeries
from maitre.prometheus.answers import Answer, read_series
from maitre.verify.sources.scrape_collation import START_TIME, Scrape, Scraped, collate, read_scrape
from maitre.verify.sources.scrape_times import time_in_line, time_in_name
from maitre.vllm.exposition import parse_sample
from maitre.vllm.metrics_text import MetricSample, own_name
from maitre.vllm.startup_log_lines import text_lines

MAX_BYTES = 2**30
"""Of one source, unpacked."""
MAX_SCRAPE_BYTES = 2**26
"""Of one scrape, or of one answer of an API. A scrape of vLLM has a few hundred kilobytes."""

_HEAD_BYTES = 4096
_HTML = re.compile(rb"\s*<(?:!doctype|html|head|body)", re.IGNORECASE)
_ANSWER = re.compile(rb'\s*(?:\xef\xbb\xbf)?\s*\{\s*"(?:status|data|isPartial)"\s*:')
_MAY_BE_TIME = re.compile(r"\d\d:\d\d|1\d{9}")
_HINT = "give what http://HOST:PORT/metrics of the vLLM server answers; it has nothing with --disable-log-stats"


def read_dumps(sources: Iterable[tuple[str, Iterable[bytes]]], prefixes: Sequence[str] = ()) -> Scraped:
    """Saved scrapes as series, all of one deployment.

    The time of a scrape is that of its samples, else of a line before it (`# scraped 2026-05-01T12:00:00Z`), else of
    the file's name. A new scrape begins after `# EOF`, after such a line, and where a sample is there again.

    Args:
        sources: a name and the bytes, cut anywhere and unpacked, of each.
        prefixes: beginnings that stand for `vllm:`.

    Raises:
        InputError: a source has no vLLM metrics, is a web page, is broken or too large.
    """
    named = list(sources)
    source = named[0][0] if len(named) == 1 else f"{len(named)} files"
    return collate(chain.from_iterable(_scrapes(name, chunks, prefixes) for name, chunks in named), source)


def _scrapes(name: str, chunks: Iterable[bytes], prefixes: Sequence[str]) -> Iterator[Scrape]:
    pieces = _bounded(name, chunks, MAX_BYTES)
    head = b""
    while len(head) < _HEAD_BYTES and (piece := next(pieces, b"")):
        head += piece
    if _HTML.match(head):
        raise InputError(f"{name}: a web page, no metrics; is it a login page?", _HINT)
    whole = chain([head], pieces)
    if _ANSWER.match(head):
        yield from _answered(name, b"".join(_bounded(name, whole, MAX_SCRAPE_BYTES)), prefixes)
        return
    found = _in_text(name, whole, prefixes)
    first, second = next(found, None), next(found, None)
    if first is None:
        raise InputError(f"{name}: no vLLM metrics", _HINT)
    if second is None:
        named_s = time_in_name(name) if np.isnan(first.time_s) else None
        yield first if named_s is None else first._replace(time_s=named_s)
        return
    yield from chain([first, second], found)


def _in_text(name: str, chunks: Iterable[bytes], prefixes: Sequence[str]) -> Iterator[Scrape]:
    """The scrapes of a text, one after the other."""
    ours = re.compile("|".join(["vllm", START_TIME, *map(re.escape, prefixes)]), re.IGNORECASE)
    lines: list[str] = []
    seen: set[str] = set()
    size, time_s = 0, np.nan
    for line in text_lines(chunks):
        head = _series_text(line) if ours.search(line, 0, 256) and not line.startswith("#") else ""
        stamp_s = None if head else _time_between(line)
        if stamp_s is not None or head in seen or line.startswith("# EOF"):
            yield from _one(lines, time_s, prefixes)
            lines, seen, size = [], set(), 0
            time_s = np.nan if stamp_s is None else stamp_s
        if head:
            lines.append(line)
            seen.add(head)
        size += len(line)
        if size > MAX_SCRAPE_BYTES:
            what = "one scrape is larger than" if lines else "nothing of vLLM's in"
            raise InputError(f"{name}: {what} {MAX_SCRAPE_BYTES // 2**20} MiB", _HINT)
    yield from _one(lines, time_s, prefixes)


def _series_text(line: str) -> str:
    """Name and labels of a sample, as they are written."""
    return line.rpartition("}")[0] or line.partition(" ")[0]


def _time_between(line: str) -> float | None:
    """The time that a line between scrapes gives; what belongs to a scrape gives none."""
    if not _MAY_BE_TIME.search(line, 0, 256) or line.startswith(("# HELP", "# TYPE", "# UNIT", "# EOF")):
        return None
    return time_in_line(line) if parse_sample(line) is None else None


def _one(lines: Sequence[str], time_s: float, prefixes: Sequence[str]) -> Iterator[Scrape]:
    """A scrape, if there is something of vLLM in it."""
    samples = read_scrape("\n".join(lines), prefixes) if lines else []
    if samples:
        yield Scrape(time_s, samples)


def _answered(name: str, content: bytes, prefixes: Sequence[str]) -> Iterator[Scrape]:
    """What a Prometheus API answered; several answers may follow each other, one a line."""
    answers = _answers(name, content)
    if refused := next((answer.error for answer in answers if answer.status == "error"), None):
        raise InputError(f"{name}: the API answered with an error: {refused[:300]}", "ask again, and save the answer")
    series = [one for answer in answers for one in read_series(name, answer)]
    rows = [(own, one) for one in series if (own := _own(one, prefixes)) is not None]
    if not rows:
        raise InputError(f"{name}: an answer of a Prometheus API without vLLM's metrics", "ask for vllm:…")
    samples = [
        MetricSample(own, one.labels, float(value), float(time_s))
        for own, one in rows
        for time_s, value in zip(one.time_s, one.values, strict=True)
    ]
    yield Scrape(np.nan, samples)


def _answers(name: str, content: bytes) -> list[Answer]:
    for parts in ([content], [line for line in content.splitlines() if line.strip()]):
        try:
            return [msgspec.json.decode(part, type=Answer) for part in parts]
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            continue
    raise InputError(f"{name}: broken JSON, or none that a Prometheus API answers", "save the whole answer again")


def _own(series: MetricSeries, prefixes: Sequence[str]) -> str | None:
    return START_TIME if series.name == START_TIME else own_name(series.name, tuple(prefixes))


def _bounded(name: str, chunks: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise InputError(f"{name}: larger than {max_bytes // 2**20:,} MiB", "give fewer scrapes, such as an hour's")
        yield chunk
