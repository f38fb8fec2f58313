"""The lines of a log, whoever carried it: which server and process wrote each, and what it says.

Known carriers: a terminal (colours), `docker logs -t`, docker's json-file, compose, CRI files, `kubectl logs --prefix`,
stern, journald, Ray's driver, VLLM_LOGGING_PREFIX, and JSON loggers of any field order. Memory is bounded: a line keeps
its first `MAX_LINE_CHARACTERS`.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from maitre.files import load_json

MAX_LINE_CHARACTERS = 2**18
"""What is kept of one line. vLLM's longest, the dump of all arguments, has a few thousand bytes."""

MAX_ROUTINE_LINES = 20
_ROUTINE = (" HTTP/1.1", "Avg prompt throughput", "Received request ", "Added request ", "Finished request ")

_MAX_PREFIX = 400
"""Characters in which time, process and place stand."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\[0;3\dm|\[1;3\dm|\[0(?:;0)?m")
_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
_RECORD = re.compile(_LEVEL + r":?\s+(?:\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?\s+)?\[?[^\s\[\]():]{1,120}\.\w+:\d+\]\s?")
_BARE_LEVEL = re.compile(_LEVEL + r":?\s+")
_PROCESS = re.compile(r"\((?P<name>[A-Za-z][\w-]{0,60})(?: rank=(?P<rank>\d+))? pid=(?P<pid>\d+)[^()]{0,120}\)\s?")
_RANK = re.compile(r"\[rank(?P<rank>\d+)\]:?\s?")
_RANKS = {key: re.compile(rf"(?:^|_){key}(\d+)(?=_|$)") for key in ("DP", "PP", "TP")}
_ENGINE = re.compile(r"EngineCore_(\d+)$")

_CARRIERS = (
    re.compile(r"(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*)\s+(?:(?:stdout|stderr) [FP] )?"),
    re.compile(r"\[(?P<source>pod/[^\]\s]{1,200})\]\s"),
    re.compile(r"(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b)(?P<source>[A-Za-z0-9][\w.-]{0,80}?)\s*\|\s"),
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<source>[\w.-]{1,80} [\w@./-]{1,80})(?:\[\d+\])?:\s"),
    re.compile(
        r"(?=\S*[-\d])(?P<source>[a-z0-9][a-z0-9.-]{2,80}(?: [a-z0-9][a-z0-9.-]{1,80})?)\s+"
        r"(?=(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[: ]|\([A-Z]\w+ )"
    ),
)
"""What other programs put before a line, at its start."""

_MESSAGE_KEYS = ("message", "msg", "event", "log", "MESSAGE", "textPayload", "text")
_LEVEL_KEYS = ("levelname", "level", "severity")
_SOURCE_KEYS = ("pod_name", "pod", "container_name", "hostname", "host")


class Process(NamedTuple):
    """Who wrote a line, as far as its tag says."""

    name: str = ""
    pid: int | None = None
    dp: int | None = None
    pp: int | None = None
    tp: int | None = None


class LogLine(NamedTuple):
    """One line."""

    source: str
    """Pod, container or host, where the carrier names it."""
    process: Process
    level: str
    message: str


def log_lines(chunks: Iterable[bytes]) -> Iterator[LogLine]:
    """The lines that are not empty, in order; NULs are passed over, other bytes than UTF-8 and UTF-16 replaced.

    Of a run of lines about requests only the first `MAX_ROUTINE_LINES` are read: days of them say nothing of the start.

    Args:
        chunks: the log's bytes, cut anywhere.
    """
    num_routine = 0
    for text in text_lines(chunks):
        num_routine = num_routine + 1 if any(words in text for words in _ROUTINE) else 0
        if num_routine <= MAX_ROUTINE_LINES:
            yield from read_line(text)


def text_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """The lines as text, each cut at `MAX_LINE_CHARACTERS`; a progress bar's carriage returns end lines, too."""
    decoder, rest, kept = None, "", 0
    for chunk in chunks:
        if decoder is None:
            decoder = _decoder(chunk)
        text = decoder.decode(chunk).replace("\0", "")
        lines = re.split(r"\r\n|\n|\r", text)
        for i, line in enumerate(lines):
            room = MAX_LINE_CHARACTERS - kept
            rest, kept = rest + line[:room], kept + min(len(line), room)
            if i < len(lines) - 1:
                if rest.strip():
                    yield rest
                rest, kept = "", 0
    if rest.strip():
        yield rest


def _decoder(first: bytes) -> codecs.IncrementalDecoder:
    """UTF-16 where its byte-order mark says so, as PowerShell writes it; else UTF-8."""
    is_utf16 = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return codecs.getincrementaldecoder("utf-16" if is_utf16 else "utf-8-sig")(errors="replace")


def read_line(text: str, source: str = "", process: Process | None = None, *, depth: int = 0) -> Iterator[LogLine]:
    """One physical line: usually one, more where a JSON record holds several.

    Args:
        text: the line.
        source: what is known already of where it comes from.
        process: what is known already of who wrote it.
        depth: how many JSON records it was unpacked from.
    """
    text = _ANSI.sub("", text) if "\x1b" in text or "m(" in text or "m " in text else text
    carrier, at = _carrier(text)
    source = carrier or source
    process = process or Process()
    if text.startswith("{", at) and depth < 3 and (record := _json_record(text[at:])) is not None:
        yield from _unpacked(record, source, process, depth)
        return
    level = ""
    if match := _RECORD.search(text, at, at + _MAX_PREFIX):
        head, message, level = text[at : match.start()], text[match.end() :], match["level"]
        process = _process(head + text[match.end() : match.end() + 80], process)
        message = _without_process(message)
    else:
        message = _without_process(text[at:])
        process = _process(text[at : at + _MAX_PREFIX][: len(text) - at - len(message)], process)
        if match := _BARE_LEVEL.match(message):
            level, message = match["level"], message[match.end() :]
    if message := message.rstrip():
        yield LogLine(source, process, level, message)


def _carrier(text: str) -> tuple[str, int]:
    """The source that other programs name before the line, and where the line itself begins."""
    source, at = "", len(text) - len(text.lstrip(" "))
    if text.startswith(("  File ", "    ")):
        return source, 0
    for _ in range(3):
        match = next((found for carrier in _CARRIERS if (found := carrier.match(text, at, at + _MAX_PREFIX))), None)
        if match is None:
            break
        source, at = match.groupdict().get("source") or source, match.end()
    return source, at


def _without_process(text: str) -> str:
    at = 0
    while match := (_PROCESS.match(text, at) or _RANK.match(text, at)):
        at = match.end()
    return text[at:].lstrip(" ") if at else text


def _process(head: str, known: Process) -> Process:
    """The process that a line's head names, the innermost one where a driver repeats it."""
    found = [*_PROCESS.finditer(head)]
    if not found:
        return known
    tag = found[-1]
    return known_process(tag["name"], int(tag["pid"][:12]))


@lru_cache(maxsize=1024)
def known_process(name: str, pid: int | None) -> Process:
    """The ranks in a process's name: `Worker_PP0_TP1`, `EngineCore_DP3`, and `EngineCore_3` up to 0.10.1."""
    ranks = {key.lower(): int(match[1][:6]) for key, rank in _RANKS.items() if (match := rank.search(name))}
    if engine := _ENGINE.search(name):
        ranks["dp"] = int(engine[1][:6])
    return Process(name=name, pid=pid, **ranks)


def _json_record(text: str) -> dict[str, Any] | None:
    try:
        record = load_json(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _unpacked(record: dict[str, Any], source: str, process: Process, depth: int) -> Iterator[LogLine]:
    """The lines of a JSON record: its message, which may be a whole line again, and its traceback."""
    message = next((record[key] for key in _MESSAGE_KEYS if isinstance(record.get(key), str)), None)
    if message is None:
        return
    nested = record.get("kubernetes")
    places = (record, nested) if isinstance(nested, dict) else (record,)
    named = next((place[key] for place in places for key in _SOURCE_KEYS if isinstance(place.get(key), str)), source)
    if isinstance(name := record.get("processName"), str) and name != "MainProcess":
        process = known_process(name[:60], record["process"] if isinstance(record.get("process"), int) else None)
    level = next((str(record[key]).upper() for key in _LEVEL_KEYS if isinstance(record.get(key), str)), "")
    trace = next((record[key] for key in ("exc_info", "exc_text", "exception") if isinstance(record.get(key), str)), "")
    for part in (message + "\n" + trace).splitlines():
        for line in read_line(part, named, process, depth=depth + 1):
            yield line if line.level else line._replace(level=level)
