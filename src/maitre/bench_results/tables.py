"""Plain tables of measured rows: CSV, TSV, Parquet, JSON objects, or a Markdown table from a write-up."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from maitre.bench_results.names import field_of, latency_of, number, setting, setting_of
from maitre.bench_results.records import Run
from maitre.bench_results.rows import has_figures, read_row
from maitre.errors import InputError
from maitre.workload.tables import open_table

_MARKDOWN_RULE = re.compile(r"^\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)+\|?\s*$")
_GUIDELLM_CSV = (b"Run Info,", b"Type,Run Id,")


def read_table(content: bytes, source: str) -> list[Run]:
    """A run a line of CSV, TSV or Parquet.

    Raises:
        InputError: the table is broken, or no column is a figure of a benchmark.
    """
    if content.lstrip(b"\xef\xbb\xbf").startswith(_GUIDELLM_CSV):
        message = f"{source}: GuideLLM's CSV, whose columns shift between stages when a figure is 0"
        raise InputError(message, "import the benchmarks.json that GuideLLM writes beside it")
    table = open_table(content, source)
    _require_figures(table.names, table.names, source)
    plain = ~(pl.selectors.temporal() | pl.selectors.nested())  # no figure is a time, and some times no calendar has
    return read_rows(table.read(table.names).select(plain).to_dicts(), source)


def read_rows(rows: Sequence[Mapping[str, Any]], source: str) -> list[Run]:
    """A run a row of named values.

    Raises:
        InputError: no column is a figure of a benchmark.
    """
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    _require_figures(names, names, source)
    tool = "vllm bench sweep" if "run_number" in names else "table"
    own = _own_settings(rows, names) if tool == "table" else ()
    return [_with_own(read_row(row, f"{source}, row {position}", tool), row, own) for position, row in enumerate(rows)]


def read_markdown(text: str, source: str) -> list[Run]:
    """The rows of the first Markdown table; none when the text has no table with figures of a benchmark."""
    lines = text.splitlines()
    rules = [position for position, line in enumerate(lines) if position and _MARKDOWN_RULE.match(line)]
    for rule in rules:
        names = _cells(lines[rule - 1])
        if not has_figures(names):
            continue
        rows = []
        for line in lines[rule + 1 :]:
            if "|" not in line:
                break
            rows.append(dict(zip(names, _cells(line), strict=False)))
        if rows:
            _fill_down(rows, names[0])
            return read_rows(rows, source)
    return []


def _own_settings(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Columns of words that nobody here knows and that repeat: they tell rows apart, such as `engine` or `mode`."""
    unknown = [name for name in names if not (field_of(name) or latency_of(name) or setting_of(name))]
    own = []
    for name in unknown:
        values = [row.get(name) for row in rows]
        words = {value for value in values if isinstance(value, str) and number(value) is None and value.strip()}
        if words and len({str(value) for value in values}) < len(rows):
            own.append(name)
    return own


def _with_own(run: Run, row: Mapping[str, Any], names: Sequence[str]) -> Run:
    own = {name: value for name in names if (value := setting(row.get(name))) is not None}
    return run.model_copy(update={"settings": run.settings | own}) if own else run


def _fill_down(rows: list[dict[str, str]], first: str) -> None:
    """An empty first cell means the same as above, as in tables that name a model once for several rows."""
    above = ""
    for row in rows:
        above = row[first] = row.get(first) or above


def _cells(line: str) -> list[str]:
    return [cell.strip().strip("*` ") for cell in line.strip().strip("|").split("|")]


def _require_figures(known: Sequence[str], names: Sequence[str], source: str) -> None:
    if not has_figures(known):
        shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        raise InputError(
            f"{source}: no benchmark result is recognised, nor a table with a throughput or a latency",
            "name columns as max_num_seqs, max_num_batched_tokens, concurrency, requests_per_s, total_tokens_per_s, "
            f"output_tokens_per_s, mean_ttft_ms, p99_itl_ms; found: {shown or 'nothing'}",
        )
