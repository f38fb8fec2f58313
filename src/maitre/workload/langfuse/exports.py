"""Files that Langfuse writes: the UI's batch export (CSV, JSON, JSONL) and the blob-storage export (also Parquet).

Both hold observations; the UI spells columns in camelCase and puts objects into CSV as JSON text, blob storage spells
them in snake_case (langfuse 4.16). Answers of the API that somebody saved (`{"data": [...]}`) are read as well.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from maitre.errors import InputError
from maitre.files import decode_text, load_json, parse_json, read_content
from maitre.workload.langfuse.observation import read_observation
from maitre.workload.langfuse.requests import build_workload
from maitre.workload.langfuse.selection import Selection, generations, is_inside
from maitre.workload.tables import PARQUET, PARQUET_ERRORS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from maitre.records import Workload
    from maitre.workload.langfuse.observation import Observation

_TYPES = frozenset(
    "GENERATION SPAN EVENT AGENT TOOL CHAIN RETRIEVER EVALUATOR EMBEDDING GUARDRAIL".split()  # noqa: SIM905
)
_TRACE, _USAGE = {"traceId", "trace_id"}, {"usageDetails", "usage_details", "usage", "inputUsage"}
_TEXTS = frozenset({"input", "output", "metadata"})
_ENDINGS = re.compile(r"\.(csv|json|jsonl|parquet)(\.gz)?$")
_FOLDERS = ("observations_v2", "observations")
_HEAD_BYTES = 1 << 20
"""What is looked at to recognise a file; a longer first row is read in full if its beginning looks right."""
_BLANK_BYTES = 64
"""No observation is as short, packed or not."""
_START = re.compile(r'\s*(?:\{\s*"data"\s*:\s*)?(?:\[\s*)?(?=\{)')


def looks_like_export(content: bytes) -> bool:
    """Whether a file holds Langfuse observations, by the names of its columns and the type of its first row."""
    if content.startswith(PARQUET):
        try:
            return _has_names(pl.read_parquet_schema(io.BytesIO(content)))
        except PARQUET_ERRORS:
            return False
    head = content[:_HEAD_BYTES].decode("utf-8-sig", "replace")
    if start := _START.match(head):
        first = _first_object(head, start.end())
        if first is None and any(f'"{name}' in head for name in _TRACE | _USAGE):  # one long row
            first = _first_object(content.decode("utf-8-sig", "replace"), start.end())
        return _is_observation(first)
    return _has_names([name.strip(' "\r') for name in head.partition("\n")[0].split(",")])


def read_export(content: bytes, source: str, selection: Selection, name: str, now: datetime | None = None) -> Workload:
    """Read one file of observations.

    Args:
        content: the file's bytes, no longer gzipped.
        source: the file's name in messages.
        selection: time window and filters; durations count back from `now`.
        name: the workload's name.
        now: the time; the clock's when None.

    Raises:
        InputError: the file is broken, or holds no usable generation.
        UsageError: the selection is wrong.
        UnsupportedError: tags are asked for, and the file has none.
    """
    calls = _select(content, source, selection, now or datetime.now(UTC))
    return build_workload(calls, name, f"{source}: Langfuse export{_told(selection)}")


def read_folder(path: Path, selection: Selection, now: datetime | None = None) -> Workload:
    """Read all observations of a blob-storage export: the files in `observations` and `observations_v2`, else all.

    Raises:
        InputError: there is no such file, or as `read_export`.
        UsageError, UnsupportedError: as `read_export`.
        SystemFailure: the disk or the permissions refuse.
    """
    files = sorted(file for file in path.rglob("*") if _ENDINGS.search(file.name) and file.is_file())
    files = [file for file in files if file.parent.name in _FOLDERS] or files
    files = [file for file in files if not _is_blank(file)]
    if not files:
        raise InputError(f"{path}: no CSV, JSON, JSONL or Parquet file", "name the folder that the export wrote")
    now = now or datetime.now(UTC)
    calls = (call for file in files for call in _read_one(file, selection, now))
    told = f"{path}: Langfuse export of {len(files):,} files{_told(selection)}"
    return build_workload(calls, path.resolve().name, told)


def _is_blank(file: Path) -> bool:
    """Whether a window of the export had no observations."""
    if file.stat().st_size > _BLANK_BYTES:
        return False
    content = file.read_bytes()
    try:
        content = gzip.decompress(content) if file.name.endswith(".gz") else content
    except (OSError, EOFError, zlib.error):
        return False
    return content.strip() in {b"", b"[]"}


def _read_one(file: Path, selection: Selection, now: datetime) -> Iterator[Observation]:
    content = read_content(str(file), str(file))
    if not looks_like_export(content):
        raise InputError(f"{file}: no observations of Langfuse", "name a folder that holds nothing else")
    return _select(content, str(file), selection, now)


def _select(content: bytes, source: str, selection: Selection, now: datetime) -> Iterator[Observation]:
    filters, bounds_ms = selection.filters(), selection.bounds_ms(now)
    return (
        read_observation(row)
        for row in generations(_rows(content, source))
        if is_inside(row, bounds_ms) and filters.accept(row)
    )


def _told(selection: Selection) -> str:
    bounds = [f"{word} {text}" for word, text in (("since", selection.since), ("until", selection.until)) if text]
    return "".join(f", {part}" for part in (*bounds, *selection.where))


def _rows(content: bytes, source: str) -> Iterator[dict[str, Any]]:
    if content.startswith(PARQUET):
        return _table_rows(content, source, is_parquet=True)
    text = decode_text(content, source)
    if not text.lstrip().startswith(("{", "[")):
        return _table_rows(text.encode(), source, is_parquet=False)
    return _json_rows(text, source)


def _table_rows(content: bytes, source: str, *, is_parquet: bool) -> Iterator[dict[str, Any]]:
    """The rows without the columns of prompts and answers."""
    try:
        if is_parquet:
            names = [name for name in pl.read_parquet_schema(io.BytesIO(content)) if name not in _TEXTS]
            frame = pl.read_parquet(io.BytesIO(content), columns=names)
        else:
            header = pl.read_csv(io.BytesIO(content), infer_schema=False, n_rows=0)
            names = [name for name in header.columns if name not in _TEXTS]
            frame = pl.read_csv(io.BytesIO(content), infer_schema=False, columns=names)
    except PARQUET_ERRORS as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{source}: broken or truncated ({reason})", "export it again") from None
    return _dicts(frame, source)


def _dicts(frame: pl.DataFrame, source: str) -> Iterator[dict[str, Any]]:
    """The rows without durations, which no observation has."""
    try:
        yield from frame.drop(pl.selectors.duration()).iter_rows(named=True)
    except (OverflowError, ValueError, pl.exceptions.PanicException):
        raise InputError(f"{source}: a time or a duration beyond what a calendar holds", "export it again") from None


def _json_rows(text: str, source: str) -> Iterator[dict[str, Any]]:
    head = text.lstrip()
    start = _START.match(head)
    if head.startswith("[") or (start and '"data"' in start[0]):
        value = parse_json(text, source)
        rows = value["data"] if isinstance(value, dict) else value
        yield from (_object(row, f"{source}, entry {number}") for number, row in enumerate(rows, 1))
        return
    if "\n{" not in head.replace("\r", "") and not _is_line(head.partition("\n")[0]):
        yield _object(parse_json(text, source), source)  # a single object over several lines
        return
    for number, line in enumerate(io.StringIO(text), 1):
        if line.strip():
            where = f"{source}, line {number}"
            try:
                yield _object(load_json(line), where)
            except (ValueError, RecursionError):
                raise InputError(f"{where}: not valid JSON", "remove the line or export again") from None


def _is_line(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: not a JSON object", "export it again")
    return value


def _first_object(text: str, start: int) -> Any:
    try:
        return json.JSONDecoder().raw_decode(text, start)[0]
    except (ValueError, RecursionError):
        return None


def _is_observation(row: Any) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("type"), str):
        return False
    return row["type"] in _TYPES and not (_TRACE | _USAGE).isdisjoint(row)


def _has_names(names: Collection[str]) -> bool:
    found = set(names)
    return "type" in found and not found.isdisjoint(_TRACE) and not found.isdisjoint(_USAGE)
