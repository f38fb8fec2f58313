"""Langfuse's two APIs of observations, a page at a time: v2 with cursors, v1 with page numbers.

v1 is deprecated, and absent where only v2's tables are written; v2 is absent before Langfuse 4. Rows of both are read
alike (`observation`). Inputs, outputs and metadata are never asked for where the API lets one choose (v2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from maitre.errors import UnsupportedError
from maitre.workload.langfuse.connection import Connection, NotServed, Overloaded, not_langfuse
from maitre.workload.langfuse.observation import Observation, read_observation
from maitre.workload.langfuse.selection import Filters, Window, format_ms, generations

if TYPE_CHECKING:
    from collections.abc import Callable

Version = Literal["v2", "v1"]

_PATHS: dict[Version, str] = {"v2": "/api/public/v2/observations", "v1": "/api/public/observations"}
_LIMITS: dict[Version, int] = {"v2": 1000, "v1": 100}
"""The most rows a page that the server takes (langfuse 4.16)."""
_FIELDS = "core,basic,time,model,usage"


@dataclass(frozen=True, slots=True)
class ObservationsApi:
    """One of the two APIs of a server, asked for the generations that pass the filters."""

    connection: Connection
    version: Version
    filters: Filters

    async def read(self, window: Window, on_page: Callable[[int], None]) -> tuple[list[Observation], int]:
        """All observations that start in a window, and how many pages they took.

        Args:
            window: the start times.
            on_page: told the rows so far.

        Raises:
            Overloaded, NotServed, InputError, SystemFailure: as `Connection.get`.
        """
        found: list[Observation] = []
        position, num_pages, seen = "", 0, {""}
        while True:
            answer = await self.connection.get(_PATHS[self.version], self._params(window, position))
            rows, meta = self._rows(answer), answer["meta"]
            found += [read_observation(row) for row in generations(rows) if self.filters.accept(row)]
            num_pages += 1
            on_page(len(found))
            position = _next_cursor(meta) if self.version == "v2" else _next_page(meta)
            if not position:
                return found, num_pages
            if position in seen:
                raise Overloaded("it gives the same page again and again")
            seen.add(position)

    def _params(self, window: Window, position: str) -> list[tuple[str, str]]:
        filters = self.filters
        params = [
            ("type", "GENERATION"),
            ("fromStartTime", format_ms(window.since_ms)),
            ("toStartTime", format_ms(window.until_ms)),
            ("limit", str(_LIMITS[self.version])),
            *(("environment", value) for value in filters.environment),
            *(("name", value) for value in filters.name if len(filters.name) == 1),
        ]
        if self.version == "v2":
            params.append(("fields", _FIELDS + (",trace_context" if filters.tag else "")))
        if text := filters.as_json(window):
            params.append(("filter", text))
        if position:
            params.append(("cursor" if self.version == "v2" else "page", position))
        return params

    def _rows(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        rows, meta = answer.get("data"), answer.get("meta")
        is_right = isinstance(rows, list) and isinstance(meta, dict)
        if not is_right or not all(isinstance(row, dict) and {"id", "type"} <= row.keys() for row in rows or ()):
            raise not_langfuse(self.connection.base_url)
        return rows or []


async def choose_api(connection: Connection, filters: Filters, window: Window) -> ObservationsApi:
    """The newest API that the server has.

    Raises:
        Overloaded: it does not tell now.
        InputError: it has none of them, or refuses the keys.
        UnsupportedError: it has v1 only, whose observations carry no tags.
    """
    said = ""
    for version in _PATHS:
        api = ObservationsApi(connection, version, filters)
        try:
            # a window of a millisecond: an answer, hardly any work
            await api.read(Window(window.since_ms, window.since_ms + 1), lambda _: None)
        except NotServed as error:
            said = str(error) or said
            continue
        if version == "v1" and filters.tag:
            raise UnsupportedError(
                f"{connection.base_url} has the observations API v1 only, which knows no tags",
                "filter by model, name or environment",
            )
        return api
    raise await _explain(connection, said)


async def _explain(connection: Connection, said: str) -> Exception:
    """Neither API is there: is it Langfuse at all?"""
    try:
        health = await connection.get("/api/public/health")
    except (NotServed, Overloaded):
        return not_langfuse(connection.base_url)
    if "version" not in health:
        return not_langfuse(connection.base_url)
    what = f"Langfuse {health['version']} at {connection.base_url} serves no observations{said}"
    return UnsupportedError(what, "export them instead: see docs/langfuse.md")


def _next_cursor(meta: dict[str, Any]) -> str:
    return str(meta.get("cursor") or "")


def _next_page(meta: dict[str, Any]) -> str:
    page, total = meta.get("page"), meta.get("totalPages")
    return str(page + 1) if isinstance(page, int) and isinstance(total, int) and page < total else ""
