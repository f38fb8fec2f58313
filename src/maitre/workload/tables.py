"""Request tables: CSV, TSV, JSON, JSON lines or Parquet, read by column."""

from __future__ import annotations

import codecs
import csv
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from maitre.errors import InputError
from maitre.files import decode_text
from maitre.workload.json_rows import JsonRows, looks_like_json, read_json_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DELIMITERS = (",", "\t", ";", "|")
PARQUET = b"PAR1"
"""The first bytes of a Parquet file."""
PARQUET_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""What reading a Parquet file may raise. On some broken ones polars panics, and a panic is no `Exception`."""
_MAX_HEADER_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 24
_MAX_LINES = 30_000_000
"""Each takes 16 bytes a column, however short it is."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose columns are read when they are asked for, so that prompt texts stay where they are."""

    source: str
    names: tuple[str, ...]
    """All columns; nested fields as dotted paths."""
    read: Callable[[Sequence[str]], pl.DataFrame]
    """Reads some columns. Text formats give strings, Parquet gives what it stores."""
    layout: str | None = None
    """What the source is, in words, where that is known before its columns are looked at."""
    num_skipped: dict[str, int] = field(default_factory=dict)
    """Requests that never became a row, counted by reason."""


def open_table(content: bytes, source: str) -> Table:
    """Open a table of any format; the format is recognised by the content.

    Args:
        content: the file's bytes, no longer gzipped.
        source: the file's name in error messages.

    Raises:
        InputError: the content is binary, mis-encoded, truncated, or has no header.
    """
    if content.startswith(PARQUET):
        return _open_parquet(content, source)
    check_text(content, source)
    if looks_like_json(content):
        return _open_json(read_json_rows(content, source), source)
    return _open_csv(content, source)


def frame_table(source: str, frame: pl.DataFrame, layout: str, num_skipped: dict[str, int] | None = None) -> Table:
    """A table of rows that were read already."""
    return Table(source, tuple(frame.columns), frame.select, layout, num_skipped or {})


def check_text(content: bytes, source: str) -> None:
    """Refuse what is not UTF-8, or has too many lines to hold.

    Raises:
        InputError: the bytes are binary or in another encoding (names the line), or too many lines.
    """
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        hint = "export it as UTF-8 text (CSV, JSON or JSONL), or as Parquet"
        raise InputError(f"{source}, line {line}: binary data, text was expected", hint)
    if content.count(b"\n") > _MAX_LINES:
        raise InputError(f"{source}: more than {_MAX_LINES:,} lines", "take a part of it, such as a busy hour")
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(content)
    try:
        for start in range(0, len(content), _CHUNK_BYTES):  # in parts: the whole as text may take four times the memory
            decoder.decode(view[start : start + _CHUNK_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        decode_text(content, source)  # names the line


def _open_json(rows: JsonRows, source: str) -> Table:
    return Table(source, rows.names, rows.read)


def _open_parquet(content: bytes, source: str) -> Table:
    def read(names: Sequence[str]) -> pl.DataFrame:
        try:
            return frame.select(fields[name].alias(name) for name in names).collect()
        except PARQUET_ERRORS as error:
            raise _corrupt_parquet(source, error) from None

    try:
        frame = pl.scan_parquet(io.BytesIO(content))
        fields = _flatten_schema(frame.collect_schema())
    except PARQUET_ERRORS as error:
        raise _corrupt_parquet(source, error) from None
    return Table(source, tuple(fields), read)


def _corrupt_parquet(source: str, error: BaseException) -> InputError:
    reason = str(error).partition("\n")[0]
    return InputError(f"{source}: the Parquet data is corrupt or truncated ({reason})", "write the file again")


def _flatten_schema(schema: pl.Schema) -> dict[str, pl.Expr]:
    """The expression that reads each field, by dotted path."""

    def walk(name: str, dtype: object, column: pl.Expr) -> dict[str, pl.Expr]:
        if not isinstance(dtype, pl.Struct):
            return {name: column}
        found: dict[str, pl.Expr] = {}
        for part in dtype.fields:
            found |= walk(f"{name}.{part.name}", part.dtype, column.struct.field(part.name))
        return found

    fields: dict[str, pl.Expr] = {}
    for name, dtype in schema.items():
        fields |= walk(name, dtype, pl.col(name))
    return fields


def _open_csv(content: bytes, source: str) -> Table:
    content = content.removeprefix(codecs.BOM_UTF8)
    header = content[:_MAX_HEADER_BYTES].lstrip(b"\r\n").partition(b"\n")[0]
    if len(header) >= _MAX_HEADER_BYTES - 2:
        raise InputError(f"{source}, line 1: longer than 1 MiB, column names were expected", "name a table or a log")
    delimiter = max(_DELIMITERS, key=header.decode(errors="replace").count)

    def read(names: Sequence[str]) -> pl.DataFrame:
        try:
            return _read_csv(content, delimiter, names)
        except pl.exceptions.PolarsError:
            raise _broken_csv(content.decode(), delimiter, source) from None

    try:
        names = _read_csv(content, delimiter, None).columns
    except pl.exceptions.PolarsError:
        raise _broken_csv(content.decode(), delimiter, source) from None
    if all(_is_number(name) for name in names):
        raise InputError(f"{source}, line 1: a row of numbers, column names were expected", "add a header line")
    return Table(source, tuple(names), read)


def _read_csv(content: bytes, delimiter: str, names: Sequence[str] | None) -> pl.DataFrame:
    """All rows of the named columns as strings, or just the header."""
    if names is None:
        return pl.read_csv(io.BytesIO(content), separator=delimiter, infer_schema=False, n_rows=0)
    frame = pl.read_csv(io.BytesIO(content), separator=delimiter, infer_schema=False, columns=list(names))
    return frame.select(names)


def _is_number(text: str) -> bool:
    try:
        float(text.partition("_duplicated_")[0])
    except ValueError:
        return False
    return True


def _broken_csv(text: str, delimiter: str, source: str) -> InputError:
    """Name the line that a CSV parser stumbles over; reads the text again, slowly."""
    csv.field_size_limit(2**31 - 1)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        width = len(next(rows))
        for row in rows:
            if len(row) > width:
                what = f"{len(row)} fields, the header has {width}"
                return InputError(f"{source}, line {rows.line_num}: {what}", "quote fields that hold the separator")
    except csv.Error as error:
        what = "a quoted field does not end; the file looks truncated" if "end of data" in str(error) else str(error)
        return InputError(f"{source}, line {rows.line_num}: {what}", "write the file again")
    except StopIteration:
        pass
    return InputError(f"{source}: not a table that can be read", "export it as CSV, JSONL or Parquet")
