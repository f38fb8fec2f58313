"""Request tables: CSV, TSV, JSON, JSON lines or Parquet, plain or gzipped, read by column."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from maitre.errors import InputError
from maitre.files import decode_text
from maitre.workload.json_rows import JsonRows, looks_like_json, read_json_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DELIMITERS = (",", "\t", ";", "|")


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose columns are read when they are asked for, so that prompt texts stay where they are."""

    source: str
    names: tuple[str, ...]
    """All columns; nested fields as dotted paths."""
    read: Callable[[Sequence[str]], pl.DataFrame]
    """Reads some columns. Text formats give strings, Parquet gives what it stores."""


def open_table(content: bytes, source: str) -> Table:
    """Recognise a table by its content.

    Args:
        content: the file's bytes, no longer gzipped.
        source: the file's name in error messages.

    Raises:
        InputError: the content is binary, mis-encoded, truncated, or has no header.
    """
    if content.startswith(b"PAR1"):
        return _open_parquet(content, source)
    text = decode_text(content, source)
    if looks_like_json(text):
        return _open_json(read_json_rows(text, source), source)
    return _open_csv(text, source)


def _open_json(rows: JsonRows, source: str) -> Table:
    return Table(source, rows.names, rows.read)


def _open_parquet(content: bytes, source: str) -> Table:
    def read(names: Sequence[str]) -> pl.DataFrame:
        try:
            return frame.select(fields[name].alias(name) for name in names).collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise _corrupt_parquet(source, error) from None

    try:
        frame = pl.scan_parquet(io.BytesIO(content))
        fields = _flatten_schema(frame.collect_schema())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _corrupt_parquet(source, error) from None
    return Table(source, tuple(fields), read)


def _corrupt_parquet(source: str, error: Exception) -> InputError:
    reason = str(error).partition("\n")[0]
    return InputError(f"{source}: the Parquet data is corrupt or truncated ({reason})", "write the file again")


def _flatten_schema(schema: pl.Schema) -> dict[str, pl.Expr]:
    """The expression that reads each field, by dotted path."""

    def walk(name: str, dtype: object, column: pl.Expr) -> dict[str, pl.Expr]:
        if not isinstance(dtype, pl.Struct):
            return {name: column}
        found: dict[str, pl.Expr] = {}
        for field in dtype.fields:
            found |= walk(f"{name}.{field.name}", field.dtype, column.struct.field(field.name))
        return found

    fields: dict[str, pl.Expr] = {}
    for name, dtype in schema.items():
        fields |= walk(name, dtype, pl.col(name))
    return fields


def _open_csv(text: str, source: str) -> Table:
    header = text.lstrip("\r\n").partition("\n")[0]
    delimiter = max(_DELIMITERS, key=header.count)
    content = text.encode()

    def read(names: Sequence[str]) -> pl.DataFrame:
        try:
            return _read_csv(content, delimiter, names)
        except pl.exceptions.PolarsError:
            raise _broken_csv(text, delimiter, source) from None

    try:
        names = _read_csv(content, delimiter, None).columns
    except pl.exceptions.PolarsError:
        raise _broken_csv(text, delimiter, source) from None
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
