"""Rows of JSON: one object a line, or an array of objects; single fields are read without keeping the rest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from maitre.errors import InputError
from maitre.files import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROWS_SEARCHED_FOR_NAMES = 1000


@dataclass(frozen=True, slots=True)
class JsonRows:
    """One JSON object a row, still as text."""

    source: str
    lines: pl.DataFrame
    """Columns `number` (counted from 1 in the file) and `text`."""
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
        text = pl.col("text")
        frame = self.lines.select(
            *(text.str.json_path_match(_json_path(self.paths[name])).alias(name) for name in names),
        )
        # polars answers null for text that is not strict JSON; Python also reads NaN, and names what is broken
        odd = self.lines.select(text.str.json_path_match("$").is_null() | ~text.str.starts_with("{")).to_series()
        if not odd.any():
            return frame
        rows = odd.arg_true()
        records = [_parse_line(number, line, self.source) for number, line in self.lines[rows].iter_rows()]
        repaired = {name: frame[name].scatter(rows, [_field(r, self.paths[name]) for r in records]) for name in names}
        return pl.DataFrame(repaired)


def looks_like_json(text: str) -> bool:
    """Whether a text starts as a JSON object or array."""
    return text.lstrip()[:1] in {"{", "["}


def read_json_rows(text: str, source: str) -> JsonRows:
    """Split a JSON text into rows.

    Args:
        text: JSON lines, an array of objects, or an object one of whose values is such an array.
        source: the file's name in error messages.

    Raises:
        InputError: broken or truncated JSON (names the line), or no list of objects.
    """
    first = text.lstrip().partition("\n")[0]
    if text.lstrip().startswith("{") and (_parses(first) or _starts_next_object(text)):
        lines = _split_lines(text)
    else:
        records = _records_of(parse_json(text, source), source)
        lines = pl.DataFrame(
            {"number": range(1, len(records) + 1), "text": [json.dumps(record) for record in records]},
            schema={"number": pl.UInt32, "text": pl.String},
        )
    if lines.is_empty():
        raise InputError(f"{source}: no rows", "name a file that holds requests")
    return JsonRows(source, lines, _find_paths(lines, source))


def _split_lines(text: str) -> pl.DataFrame:
    lines = pl.DataFrame({"text": pl.Series([text]).str.split("\n").explode()}).with_row_index("number", offset=1)
    return lines.with_columns(pl.col("text").str.strip_chars()).filter(pl.col("text") != "")


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _starts_next_object(text: str) -> bool:
    """Whether the second line starts an object: then the first is a broken row, not the head of a long object."""
    lines = text.lstrip().split("\n", 2)
    return len(lines) > 1 and lines[1].lstrip().startswith("{")


def _records_of(value: Any, source: str) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        lists = [item for item in value.values() if isinstance(item, list) and item and isinstance(item[0], dict)]
        if len(lists) != 1:
            raise InputError(f"{source}: a JSON object, but no stored workload and no list of requests", "see --help")
        value = lists[0]
    for number, record in enumerate(value, 1):
        if not isinstance(record, dict):
            raise InputError(f"{source}, entry {number}: not a JSON object", "write one object for each request")
    return list(value)


def _find_paths(lines: pl.DataFrame, source: str) -> dict[str, tuple[str, ...]]:
    paths: dict[str, tuple[str, ...]] = {}
    for number, line in lines.head(_ROWS_SEARCHED_FOR_NAMES).iter_rows():
        for path in _walk(_parse_line(number, line, source)):
            paths.setdefault(".".join(path), path)
    return paths


def _walk(record: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _walk(value, (*above, key))
        elif not set('"\\') & set("".join((*above, key))):  # what a JSON path cannot say is no name of a length
            yield (*above, key)


def _parse_line(number: int, text: str, source: str) -> dict[str, Any]:
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


def _json_path(path: tuple[str, ...]) -> str:
    return "$" + "".join(f'["{key}"]' for key in path)


def _field(record: dict[str, Any], path: tuple[str, ...]) -> str | None:
    value: Any = record
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if value is None or isinstance(value, str) else json.dumps(value)
