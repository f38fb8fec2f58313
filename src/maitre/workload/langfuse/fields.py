"""Single fields of an observation, in the spellings of the API (camelCase) and of exports (also snake_case)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def model_of(row: Mapping[str, Any]) -> str:
    """The model's name: `model` since langfuse#16946 (2026-09), `providedModelName` before."""
    return str(field(row, "model", "providedModelName", "provided_model_name") or "")


def tags_of(row: Mapping[str, Any]) -> list[str] | None:
    """The trace's tags; None where the row does not carry them."""
    names = ("tags", "traceTags", "trace_tags")
    if row.keys().isdisjoint(names):
        return None
    tags = field(row, *names) or []
    if isinstance(tags, str):
        try:
            tags = json.loads(tags)
        except (ValueError, RecursionError):
            return [tags]
    return [str(tag) for tag in tags] if isinstance(tags, list) else [str(tags)]


def field(row: Mapping[str, Any], *names: str) -> Any:
    """The first of several spellings that the row has and that is not empty."""
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def start_ms(row: Mapping[str, Any]) -> int | None:
    """The start in whole milliseconds since 1970."""
    start_us = time_us(row, "startTime", "start_time")
    return None if start_us is None else start_us // 1000


def time_us(row: Mapping[str, Any], *names: str) -> int | None:
    """A time in microseconds since 1970; ClickHouse writes UTC without a zone."""
    value = field(row, *names)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
