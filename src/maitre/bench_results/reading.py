"""Files become runs: the format is told by the content, never by the file's ending."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from maitre.bench_results.aiperf import is_aiperf, read_aiperf, read_aiperf_csv
from maitre.bench_results.auto_tune import read_auto_tune
from maitre.bench_results.file_names import settings_in_name
from maitre.bench_results.guidellm import is_guidellm, read_guidellm, read_guidellm_progress
from maitre.bench_results.records import Run
from maitre.bench_results.rows import merge_settings
from maitre.bench_results.tables import read_markdown, read_rows, read_table
from maitre.bench_results.vllm_json import is_vllm_json, read_vllm_json
from maitre.bench_results.vllm_text import read_vllm_text
from maitre.errors import InputError
from maitre.files import decode_text, load_json, parse_json, read_content

_PARQUET = b"PAR1"
_LOOKS_LIKE_JSON = re.compile(r"\s*(?:\{\s*[\"}]|\[\s*(?:[{\]\"]|-?[\d.]+\s*[,\]]))")
_ERROR_ANSWER = re.compile(r"\s*\{\s*\"(?:detail|error|object\":\s*\"error)\"")
_SIGNS_OF_FAILURE = re.compile(
    r"\(standard_in\) \d+: .*|\{\s*\"(?:detail|error|object)\":.*?\}|Traceback \(most recent call last\).*"
    r"|\b\w*(?:Error|Exception)\b: .*|\berror: .*|Killed\b.*|\bConnection refused\b.*"
    r"|Starting initial single prompt test run.*|Traffic request rate: .*",
)


def read_results(path: str, given: Mapping[str, Any] | None = None) -> tuple[list[Run], bool]:
    """The runs of a file.

    Args:
        path: a file's path (text, JSON, CSV, Parquet; plain or gzipped), or `-` for stdin.
        given: settings and load that the user states, for runs that do not say them.

    Returns:
        The runs in order, at least one, and whether the file is a table of rows.

    Raises:
        InputError: the file is missing, empty, broken or nothing that a benchmark writes.
    """
    source = "stdin" if path == "-" else path
    content = read_content(path, source)
    runs, is_table = _read(content, source)
    named = {} if path == "-" else settings_in_name(path)
    stated = {name: value for name, value in (given or {}).items() if value is not None}
    return [merge_settings(merge_settings(run, named), stated) for run in runs], is_table


def _read(content: bytes, source: str) -> tuple[list[Run], bool]:
    if content.startswith(_PARQUET):
        return read_table(content, source), True
    text = decode_text(content, source)
    if _LOOKS_LIKE_JSON.match(text) and not _ERROR_ANSWER.match(text):
        return _read_json(text, source)
    for read in (read_vllm_text, read_guidellm_progress, read_auto_tune, read_aiperf_csv):
        if runs := read(text, source):
            return runs, False
    return _read_rows_or_failure(content, text, source)


def _read_rows_or_failure(content: bytes, text: str, source: str) -> tuple[list[Run], bool]:
    if runs := read_markdown(text, source):
        return runs, True
    if sign := _SIGNS_OF_FAILURE.search(text):
        return [Run(source=source, tool="unknown", failure=_failure_of(text, sign[0]))], False
    return read_table(content, source), True


def _failure_of(text: str, sign: str) -> str:
    hint = " (the server does not know the route: /reset_prefix_cache needs VLLM_SERVER_DEV_MODE=1)"
    return sign.strip()[:200] + (hint if '"Not Found"' in text else "")


def _read_json(text: str, source: str) -> tuple[list[Run], bool]:
    value = _parse(text, source)
    if is_guidellm(value):
        runs = read_guidellm(value, source)
        if not runs:
            raise InputError(f"{source}: a GuideLLM report without a stage", "run the benchmark to its end")
        return runs, False
    if isinstance(value, dict) and is_aiperf(value):
        return [read_aiperf(value, source)], False
    records = value if isinstance(value, list) else [value]
    if not records or not all(isinstance(record, dict) for record in records):
        raise InputError(f"{source}: JSON, but no list of results", "import the file that the benchmark wrote")
    if all(is_vllm_json(record) for record in records):
        single = len(records) == 1
        return [
            read_vllm_json(record, source if single else f"{source}, result {position}")
            for position, record in enumerate(records, 1)
        ], False
    return read_rows(_rows_of(value), source), True


def _rows_of(value: Any) -> list[dict[str, Any]]:
    """The rows of an array, or of the one array of objects inside an object."""
    if isinstance(value, dict):
        lists = [item for item in value.values() if isinstance(item, list) and item and isinstance(item[0], dict)]
        value = lists[0] if len(lists) == 1 else [value]
    return [row for row in value if isinstance(row, dict)]


def _parse(text: str, source: str) -> Any:
    """One JSON value, or the list of the values that stand one a line (`--append-result`, JSONL)."""
    try:
        return load_json(text)
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Extra data"):
            return parse_json(text, source)
    except (ValueError, RecursionError):
        return parse_json(text, source)
    lines = ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
    return [parse_json(line, f"{source}, line {number}") for number, line in lines]
