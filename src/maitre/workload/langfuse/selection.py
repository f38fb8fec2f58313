"""Which observations count: a time window, and filters by model, name, tag and environment."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from maitre.errors import UnsupportedError, UsageError
from maitre.records import Record
from maitre.workload.langfuse.fields import field, model_of, start_ms, tags_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Key = Literal["model", "name", "tag", "environment"]

_AGO = {"min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Selection(Record):
    """What the user asks for, as written."""

    since: str | None = None
    """ISO 8601 (UTC without a zone), or a duration before now: 90min, 24h, 7d, 2w."""
    until: str | None = None
    """The same; exclusive."""
    where: tuple[str, ...] = ()
    """KEY=VALUE with model, name, tag or environment; of several with one key, any may hold."""

    def refuse(self, source: str) -> None:
        """Say that a source cannot be selected from.

        Raises:
            UsageError: something is asked for.
        """
        if self != Selection():
            raise UsageError(f"{source}: no source from Langfuse", "leave --since, --until and --where out")

    def filters(self) -> Filters:
        """The filters by key.

        Raises:
            UsageError: no KEY=VALUE, or a key that does not exist.
        """
        values: dict[str, list[str]] = {key: [] for key in get_args(Key)}
        for text in self.where:
            key, equals, value = text.partition("=")
            if not equals or not value or key not in values:
                raise UsageError(f"--where {text}: no filter", f"write KEY=VALUE with {', '.join(values)}")
            values[key].append(value)
        return Filters(**{key: tuple(found) for key, found in values.items()})

    def bounds_ms(self, now: datetime) -> tuple[int | None, int | None]:
        """Start and end of the time window in milliseconds since 1970; None is open.

        Raises:
            UsageError: a time cannot be read, or the window is empty.
        """
        since, until = (
            None if text is None else _parse_time_ms(text, name, now)
            for name, text in (("--since", self.since), ("--until", self.until))
        )
        if since is not None and until is not None and since >= until:
            raise UsageError("--since is not before --until", "ask for an earlier start")
        return since, until


class Window(NamedTuple):
    """Start times from `since_ms` up to but without `until_ms`, in milliseconds since 1970."""

    since_ms: int
    until_ms: int

    def __str__(self) -> str:
        return f"{format_ms(self.since_ms)} to {format_ms(self.until_ms)}"


class Filters(NamedTuple):
    """Values that an observation may have; an empty tuple lets all pass."""

    model: tuple[str, ...] = ()
    name: tuple[str, ...] = ()
    tag: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()

    def accept(self, row: Mapping[str, Any]) -> bool:
        """Whether a row passes.

        Raises:
            UnsupportedError: tags are asked for, and the row does not carry them.
        """
        tags = tags_of(row) if self.tag else []
        if tags is None:
            raise UnsupportedError("these observations carry no tags", "filter by model, name or environment")
        return (
            (not self.model or model_of(row) in self.model)
            and (not self.name or field(row, "name") in self.name)
            and (not self.tag or not set(tags).isdisjoint(self.tag))
            and (not self.environment or (field(row, "environment") or "default") in self.environment)
        )

    def as_json(self, window: Window) -> str | None:
        """Langfuse's `filter` parameter, None when plain parameters say all; it overrides these, so it repeats them."""
        if not (self.model or self.tag or len(self.name) > 1):
            return None
        conditions = [_condition("type", ("GENERATION",))]
        for column, values in (("model", self.model), ("name", self.name), ("environment", self.environment)):
            conditions += [_condition(column, values)] if values else []
        if self.tag:
            conditions.append(
                {"type": "arrayOptions", "column": "traceTags", "operator": "any of", "value": list(self.tag)}
            )
        for operator, time_ms in ((">=", window.since_ms), ("<", window.until_ms)):
            conditions.append(
                {"type": "datetime", "column": "startTime", "operator": operator, "value": format_ms(time_ms)}
            )
        return json.dumps(conditions)

    def __str__(self) -> str:
        return ", ".join(f"{key}={value}" for key, values in self._asdict().items() for value in values)


def is_inside(row: Mapping[str, Any], bounds_ms: tuple[int | None, int | None]) -> bool:
    """Whether a row starts in a window; without a start it does not."""
    if bounds_ms == (None, None):
        return True
    start, (since, until) = start_ms(row), bounds_ms
    return start is not None and (since is None or start >= since) and (until is None or start < until)


def generations(rows: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """The rows that are model calls. Agents, chains and spans may repeat the usage of the calls inside them."""
    return (row for row in rows if field(row, "type") == "GENERATION")


def format_ms(time_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds, as Langfuse takes it."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def to_ms(moment: datetime) -> int:
    """Milliseconds since 1970."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _condition(column: str, values: tuple[str, ...]) -> dict[str, Any]:
    if len(values) == 1:
        return {"type": "string", "column": column, "operator": "=", "value": values[0]}
    return {"type": "stringOptions", "column": column, "operator": "any of", "value": list(values)}


def _parse_time_ms(text: str, option: str, now: datetime) -> int:
    ago = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)\s*(min|h|d|w)", text.strip())
    try:
        if ago:
            return to_ms(now - timedelta(**{_AGO[ago[2]]: float(ago[1])}))
        moment = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise UsageError(f"{option} {text}: no time", "write 2026-11-01, 2026-11-01T08:00Z or 7d (ago)") from None
    return to_ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
