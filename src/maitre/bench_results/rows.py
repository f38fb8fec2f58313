"""A flat row of named figures becomes a run: a line of a table, or one JSON object of `vllm bench`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from maitre.bench_results.names import count, field_of, latency_of, number, setting, setting_of
from maitre.bench_results.records import Run

_WHOLE = {
    *("max_num_seqs", "max_num_batched_tokens", "concurrency", "peak_concurrency", "num_requests"),
    *("successful", "failed", "total_input_tokens", "total_output_tokens"),
}
_RATES = ("requests_per_s", "total_tokens_per_s", "output_tokens_per_s", "tokens_per_s")


def read_row(row: Mapping[str, Any], source: str, tool: str) -> Run:
    """One run from named figures; names that mean nothing here are left out.

    Args:
        row: values by column or key, numbers or text.
        source: the file, and which row of it.
        tool: who wrote it.
    """
    fields: dict[str, Any] = {"settings": {}, "latencies": {}}
    for name, value in row.items():
        if value is not None:
            _take(fields, name, value)
    return Run(source=source, tool=tool, **fields)


def has_figures(names: Iterable[str]) -> bool:
    """Whether columns of these names hold a throughput or a latency."""
    return any(field_of(name) in _RATES or latency_of(name) for name in names)


def merge_settings(run: Run, said: Mapping[str, Any]) -> Run:
    """The run with what a file's name or a log line says about dials and load, where the run itself says nothing."""
    update: dict[str, Any] = {}
    settings = dict(run.settings)
    for name, value in said.items():
        field, other = field_of(name), setting_of(name)
        if field in _WHOLE and getattr(run, field) is None:
            update[field] = count(value)
        elif field == "request_rate" and run.request_rate is None:
            update[field] = _rate(value)
        elif other and (known := setting(value)) is not None:
            settings.setdefault(other, known)
    return run.model_copy(update=update | {"settings": settings})


def _take(fields: dict[str, Any], name: str, value: Any) -> None:
    field = field_of(name)
    if field == "label":
        fields.setdefault("label", str(value) or None)
    elif field == "request_rate":
        fields[field] = _rate(value)
    elif field is not None:
        found = count(value) if field in _WHOLE else number(value)
        if found is not None:
            fields[field] = found
    elif latency := latency_of(name):
        key, factor = latency
        if factor is None:
            fields["without_unit"] = (*fields.get("without_unit", ()), name)
        elif (found := number(value)) is not None:
            fields["latencies"][key] = found * factor
    elif (other := setting_of(name)) and (known := setting(value)) is not None:
        fields["settings"][other] = known


def _rate(value: Any) -> Any:
    return "inf" if str(value).strip().lower() in {"inf", "infinity"} else number(value)
