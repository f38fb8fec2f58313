"""Rows of JSON: one object a line, or an array of objects; single fields are read without keeping the rest."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from maitre.errors import InputError
from maitre.files import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROWS_SEARCHED_FOR_NAMES = 1000
_HEAD_BYTES = 1 << 16
_ROWS = list[msgspec.Raw] | dict[str, msgspec.Raw]
_MAX_VALUES = 50_000_000
"""Each may become an object of 72 bytes while a list is cut into its rows."""
MAX_BUILT_BYTES = 64 << 20
"""A longer text is not turned into Python objects: `{}` after `{}` they take twenty times its length."""
_PAGE_KEYS = ("data", "rows", "requests", "items", "results", "records", "logs")
_LEAF: dict[str, Any] = {}
"""Marks the end of a path; told from an empty branch by identity."""


@dataclass(frozen=True, slots=True)
class JsonRows:
    """One JSON object a row, still as text."""

    source: str
    content: bytes
    """JSON lines, UTF-8."""
    paths: dict[str, tuple[str, ...]]
    """The keys that lead to each field, by dotted path."""

    @property
    def names(self) -> tuple[str, ...]:
        """All fields as dotted paths."""
        return tuple(self.paths)

    def read(self, names: Sequence[str]) -> pl.DataFrame:
        """Some fields of every row as strings: numbers and lists as JSON text, null where a row lacks the field.

        Raises:
            InputError: a line is no JSON object; names it.
        """
        frame = self._read_at_once(names)
        return self._read_row_by_row(names) if frame is None else frame

    def _read_at_once(self, names: Sequence[str]) -> pl.DataFrame | None:
        """The fast way, for rows that are strict JSON and alike in their nesting; None when they are not."""
        schema = _schema([self.paths[name] for name in names])
        if schema is None:
            return None
        try:
            rows = pl.read_ndjson(io.BytesIO(self.content), schema=schema)
        except pl.exceptions.PolarsError:
            return None
        return rows.select(_expression(self.paths[name]).alias(name) for name in names)

    def _read_row_by_row(self, names: Sequence[str]) -> pl.DataFrame:
        """The patient way: rows differ in their nesting, hold NaN, or are broken, which is then said."""
        values: dict[str, list[str | None]] = {name: [] for name in names}
        for number, line in enumerate(self.content.split(b"\n"), 1):
            if line.strip():
                record = _parse_line(number, line.decode(), self.source)
                for name in names:
                    values[name].append(_field(record, self.paths[name]))
        return pl.DataFrame(values, schema=dict.fromkeys(names, pl.String))


def looks_like_json(content: bytes) -> bool:
    """Whether a text starts as a JSON object or array."""
    return content[:4096].lstrip()[:1] in {b"{", b"["}


def read_json_rows(content: bytes, source: str) -> JsonRows:
    """Split a JSON text into rows.

    Args:
        content: UTF-8: JSON lines, an array of objects, or an object one of whose values is such an array.
        source: the file's name in error messages.

    Raises:
        InputError: broken or truncated JSON (names the line), or no list of objects.
    """
    lines = json_lines(content, source)
    rows = JsonRows(source, lines, _find_paths(lines, source))
    if not lines.strip():
        raise InputError(f"{source}: no rows", "name a file that holds requests")
    return rows


def json_lines(content: bytes, source: str) -> bytes:
    """The same rows with one object a line.

    Raises:
        InputError: broken or truncated JSON (names the line), or no list of objects.
    """
    if _is_lines(content) and b"\n" in content.strip():
        return content
    if content.count(b",") > _MAX_VALUES:
        raise InputError(f"{source}: more than {_MAX_VALUES:,} values", "take a part of it, such as a busy hour")
    if _is_lines(content) and not _is_page(content):
        return content
    try:
        # Raw leaves the rows as they are written; a line end inside a row can only be space, in strings it is escaped
        decoded: list[msgspec.Raw] | dict[str, msgspec.Raw] = msgspec.json.decode(content, type=_ROWS)
        rows = decoded if isinstance(decoded, list) else _list_in(decoded, source)
    except (msgspec.MsgspecError, RecursionError) as error:
        if len(content) > MAX_BUILT_BYTES:
            raise InputError(f"{source}: not valid JSON ({error})", "write the file again") from None
        parse_json(content.decode(), source)  # names line and column
        what = "JSON, but no list of requests, or not UTF-8"
        raise InputError(f"{source}: {what}", "write one object a line, or a list of objects") from None
    for number, row in enumerate(rows, 1):
        if not _starts(row, b"{"):
            raise InputError(f"{source}, entry {number}: not a JSON object", "write one object for each request")
    return b"\n".join(bytes(row).replace(b"\n", b" ").replace(b"\r", b" ") for row in rows)


def _is_lines(content: bytes) -> bool:
    text = content[:_HEAD_BYTES].lstrip()
    if not text.startswith(b"{"):
        return False
    lines = content.lstrip().split(b"\n", 2) if len(content) > _HEAD_BYTES else text.split(b"\n", 2)
    # a second line that starts an object: then the first is a broken row, not the head of a long object
    return _parses(lines[0]) or (len(lines) > 1 and lines[1].lstrip().startswith(b"{"))


def _is_page(content: bytes) -> bool:
    """Whether the only line is a page of an API's answer: rows under a key that means no more than that."""
    try:
        values = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return False
    return any(_starts(values[key], b"[") for key in _PAGE_KEYS if key in values)


def _parses(line: bytes) -> bool:
    try:
        if len(line) > MAX_BUILT_BYTES:
            msgspec.json.decode(line, type=msgspec.Raw)
        else:
            json.loads(line)  # also takes NaN
    except (ValueError, RecursionError):
        return False
    return True


def _list_in(wrapper: dict[str, msgspec.Raw], source: str) -> list[msgspec.Raw]:
    lists = [
        rows
        for value in wrapper.values()
        if _starts(value, b"[")
        and (rows := msgspec.json.decode(value, type=list[msgspec.Raw]))
        and _starts(rows[0], b"{")
    ]
    if len(lists) != 1:
        raise InputError(f"{source}: a JSON object, but no stored workload and no list of requests", "see --help")
    return lists[0]


def _starts(value: msgspec.Raw, bracket: bytes) -> bool:
    return bytes(memoryview(value)[:1]) == bracket


def _schema(paths: Sequence[tuple[str, ...]]) -> pl.Schema | None:
    """What polars is to read: strings at the given paths; None when one path leads through another's value."""
    tree: dict[str, Any] = {}
    for path in paths:
        branch = tree
        for key in path[:-1]:
            branch = branch.setdefault(key, {})
            if branch is _LEAF:
                return None
        if path[-1] in branch:
            return None
        branch[path[-1]] = _LEAF
    return pl.Schema({key: _dtype(branch) for key, branch in tree.items()})


def _dtype(branch: Any) -> Any:
    if branch is _LEAF:
        return pl.String
    return pl.Struct({key: _dtype(below) for key, below in branch.items()})


def _expression(path: tuple[str, ...]) -> pl.Expr:
    column = pl.col(path[0])
    for key in path[1:]:
        column = column.struct.field(key)
    return column


def _find_paths(lines: bytes, source: str) -> dict[str, tuple[str, ...]]:
    paths: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(lines.split(b"\n", _ROWS_SEARCHED_FOR_NAMES)[:_ROWS_SEARCHED_FOR_NAMES], 1):
        if line.strip():
            for path in _walk(_parse_line(number, line.decode(), source)):
                name = ".".join(path)
                if _as_text(name) == name:
                    paths.setdefault(name, path)
    return paths


def _walk(record: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _walk(value, (*above, key))
        else:
            yield (*above, key)


def _parse_line(number: int, text: str, source: str) -> dict[str, Any]:
    if len(text) > MAX_BUILT_BYTES:
        raise InputError(
            f"{source}, line {number}: longer than {MAX_BUILT_BYTES >> 20} MiB", "write one request a line"
        )
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(text) - 1 or not text.endswith("}")
        what = "the JSON ends too early; the line looks truncated" if at_end else f"not valid JSON ({error.msg})"
        where = f"{source}, line {number}, column {error.colno}"
        raise InputError(f"{where}: {what}", "remove the line or write the file again") from None
    except (ValueError, RecursionError):
        what = "a number too long, or nested too deeply"
        raise InputError(f"{source}, line {number}: {what}", "write one flat object a line") from None
    if not isinstance(record, dict):
        raise InputError(f"{source}, line {number}: not a JSON object", "write one object for each request")
    return record


def _field(record: dict[str, Any], path: tuple[str, ...]) -> str | None:
    value: Any = record
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, str):
        return _as_text(value)
    return value if value is None else json.dumps(value)


def _as_text(value: str) -> str:
    """The text without the halves of characters that JSON can escape and UTF-8 cannot hold."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()
