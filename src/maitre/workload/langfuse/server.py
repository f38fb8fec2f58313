"""A workload from a Langfuse server: `langfuse:https://HOST`, keys from the environment."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from maitre.errors import UsageError
from maitre.workload.langfuse.connection import TIMEOUT_S, Connection, NotServed, Overloaded, Pause
from maitre.workload.langfuse.journal import Journal, journal_path
from maitre.workload.langfuse.pages import ObservationsApi, choose_api
from maitre.workload.langfuse.progress import FetchProgress, OnProgress
from maitre.workload.langfuse.requests import build_workload
from maitre.workload.langfuse.selection import Filters, Selection, Window, format_ms, to_ms
from maitre.workload.langfuse.windows import Patience, read_windows

if TYPE_CHECKING:
    from maitre.records import Workload
    from maitre.workload.langfuse.observation import Observation

_DEFAULT_SPAN_MS = 7 * 24 * 3600 * 1000
_SETTLED_MS = 15 * 60 * 1000
"""Langfuse shows what it ingests within about ten minutes; later rows would be missing."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a read takes from outside: variables, clock, and how it waits."""

    environ: Mapping[str, str]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    pause: Pause = asyncio.sleep


def read_server(base_url: str, selection: Selection, around: Surroundings, on_progress: OnProgress) -> Workload:
    """Read the generations of a project.

    Args:
        base_url: `https://HOST`; empty for LANGFUSE_BASE_URL or LANGFUSE_HOST.
        selection: the time window (the last seven days up to 15 minutes ago when open) and filters.
        around: variables, clock and waiting.
        on_progress: told of every page and of every wait.

    Raises:
        UsageError: no address, no keys, or the selection is wrong.
        InputError: the keys are refused, it is no Langfuse, or there is no usable generation.
        UnsupportedError: the server has no API that can answer.
        SystemFailure: the network, the server or the disk failed; the same call goes on where this one stopped.
    """
    base_url = _address(base_url, around.environ)
    keys = _keys(around.environ)
    filters, now = selection.filters(), around.now()
    window = _window(selection, now)
    question = {"base_url": base_url, "public_key": keys.public, "selection": selection.model_dump(mode="json")}
    journal = Journal(journal_path(around.environ, question), window, to_ms(now))
    reader = _Reader(base_url, keys, filters, journal, around, on_progress)
    version = asyncio.run(reader.run())
    journal.remove()
    told = f", {filters}" if any(filters) else ""
    source = f"{base_url}, Langfuse observations {version}, {journal.window}{told}"
    return build_workload(journal.observations, urlsplit(base_url).hostname or "langfuse", source)


class _Keys(NamedTuple):
    public: str
    secret: str

    @property
    def headers(self) -> dict[str, str]:
        """HTTP Basic (RFC 7617)."""
        return {"Authorization": f"Basic {base64.b64encode(f'{self.public}:{self.secret}'.encode()).decode()}"}


class _Reader:
    """Fills a journal from a server."""

    def __init__(
        self, base_url: str, keys: _Keys, filters: Filters, journal: Journal, around: Surroundings,
        on_progress: OnProgress,
    ) -> None:  # fmt: skip
        self._base_url, self._keys, self._filters = base_url, keys, filters
        self._journal, self._around, self._on_progress = journal, around, on_progress

    async def run(self) -> str:
        """Read what the journal lacks; returns the version of the API."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        # trust_env would also put an entry of ~/.netrc in the keys' place
        async with aiohttp.ClientSession(
            headers=self._keys.headers, timeout=timeout, proxy=_proxy(self._base_url)
        ) as session:
            connection = Connection(
                session, self._base_url, now=self._around.now, pause=self._around.pause, on_note=self._tell
            )
            patience = Patience(self._base_url, self._around.pause, self._tell)
            if self._journal.is_resumed:
                self._tell(
                    f"going on from {format_ms(self._journal.done_until_ms)}, the window is {self._journal.window}"
                )
            api = await self._choose(connection, patience)

            async def read(part: Window) -> tuple[list[Observation], int]:
                try:
                    return await api.read(part, lambda num_rows: self._tell("", num_rows))
                except NotServed as error:  # it was there a moment ago: a server that is being replaced
                    raise Overloaded(f"its observations are gone{error}") from None

            async for part, observations in read_windows(read, self._journal.rest, patience):
                self._journal.add(part, observations)
                self._tell("")
        return api.version

    async def _choose(self, connection: Connection, patience: Patience) -> ObservationsApi:
        while True:
            try:
                api = await choose_api(connection, self._filters, self._journal.window)
            except Overloaded as error:
                await patience.fail(error)
                continue
            patience.succeed()
            return api

    def _tell(self, note: str, num_more: int = 0) -> None:
        window = self._journal.window
        share = (self._journal.done_until_ms - window.since_ms) / (window.until_ms - window.since_ms)
        self._on_progress(FetchProgress(len(self._journal.observations) + num_more, share, note))


def _address(base_url: str, environ: Mapping[str, str]) -> str:
    found = base_url or environ.get("LANGFUSE_BASE_URL") or environ.get("LANGFUSE_HOST") or ""
    if not found:
        raise UsageError("langfuse: names no host", "write langfuse:https://HOST, or set LANGFUSE_BASE_URL")
    if not _is_address(found):
        raise UsageError(f"langfuse:{found.rpartition('@')[2]}: no address of a server", "write langfuse:https://HOST")
    return found.rstrip("/")


def _is_address(text: str) -> bool:
    """An address without a user, a port that exists, and nothing behind the path."""
    try:
        parts = urlsplit(text)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    is_bare = not (parts.username or parts.query or parts.fragment)
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and has_port and is_bare


def _proxy(base_url: str) -> str | None:
    """The proxy that the environment names for this address (HTTP_PROXY, HTTPS_PROXY, NO_PROXY)."""
    parts = urlsplit(base_url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


def _keys(environ: Mapping[str, str]) -> _Keys:
    names = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")
    public, secret = (environ.get(name, "").strip() for name in names)
    missing = [name for name, value in zip(names, (public, secret), strict=True) if not value]
    if missing:
        raise UsageError(f"{' and '.join(missing)} not set", "export the keys of a project: Settings, API Keys")
    return _Keys(public, secret)


def _window(selection: Selection, now: datetime) -> Window:
    since, until = selection.bounds_ms(now)
    until = to_ms(now) - _SETTLED_MS if until is None else until
    since = until - _DEFAULT_SPAN_MS if since is None else since
    if since >= until:
        raise UsageError("--since is not before the end, 15 minutes ago", "ask for an earlier start, or set --until")
    return Window(since, until)
