"""The lines of a vLLM log without what differs between versions: colours, process prefixes, JSON."""

from __future__ import annotations

import re

from maitre.files import load_json

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PROCESS = re.compile(r"^\s*(?:\([^()]*\bpid=\d+[^()]*\)|\[rank\d+\]:)\s?(?:\[repeated \d+x[^\]]*\]\s*)?")
_RECORD = re.compile(
    r"^\s*(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+)?\d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]\s]+:\d+\]|[\w./]+:\d+\])\s?"
    r"|^\s*(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):?\s+"
)


def log_lines(log_text: str) -> list[str]:
    """The lines in order, without colours and process prefixes; a JSON line becomes `LEVEL message`."""
    lines: list[str] = []
    for raw in re.split(r"\r\n|\n|\r", _ANSI.sub("", log_text)):
        line = raw
        while match := _PROCESS.match(line):
            line = line[match.end() :]
        lines += _json_lines(line) if line.startswith("{") else [line.rstrip()]
    return lines


def message_of(line: str) -> str:
    """The message of one such line, without level, time and place in the source."""
    return _RECORD.sub("", line, count=1)


def _json_lines(line: str) -> list[str]:
    """What a JSON log line says: its message and its traceback; the line itself if it is no log record."""
    try:
        record = load_json(line)
    except (ValueError, RecursionError):
        return [line]
    message = next((record[key] for key in ("message", "msg", "event") if isinstance(record.get(key), str)), None)
    if message is None:
        return [line]
    level = record.get("levelname") or record.get("level") or ""
    trace = next((record[key] for key in ("exc_info", "exc_text", "exception") if isinstance(record.get(key), str)), "")
    return [
        f"{level} {part}".strip() if i == 0 else part for i, part in enumerate(message.splitlines())
    ] + trace.splitlines()
