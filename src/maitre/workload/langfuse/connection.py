"""One GET at a time to a Langfuse server; what it answers becomes JSON or one of a few errors."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import aiohttp

from maitre.errors import InputError, SystemFailure, UsageError
from maitre.files import load_json
from maitre.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

Pause = Callable[[float], Awaitable[None]]
"""Waits some seconds."""

TIMEOUT_S = 60.0
"""Longer than a self-hosted server's own 30 s (langfuse#6318), shorter than the 100 s of Cloud's edge (error 524)."""
_MAX_WAIT_S = 600.0
_MAX_WAITS = 30
"""In a row; limits count per minute (langfuse 4.16, RateLimitService)."""
_UNSAID_WAIT_S = 10.0
_OVERLOADED = frozenset({408, 422})
"""Beside 5xx: Langfuse says 422 when ClickHouse runs out of time or memory."""


class Overloaded(Exception):  # noqa: N818 - a state of the server, and the reader's signal to ask for less
    """The server could not answer this question now; a smaller one may work."""


class NotServed(Exception):  # noqa: N818 - the reader's signal to try the other API
    """The server has no such endpoint, or has it switched off (404, 410)."""


class Connection:
    """A server, and whether it has ever answered."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        *,
        now: Callable[[], datetime],
        pause: Pause,
        on_note: Callable[[str], None],
    ) -> None:
        self.base_url = base_url
        self._session, self._now, self._pause, self._on_note = session, now, pause, on_note
        self._has_answered = False

    async def get(self, path: str, params: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
        """Ask for a JSON object; waits as long as the server's rate limit demands.

        Raises:
            Overloaded: time-out, 408, 422, 5xx, or the connection broke.
            NotServed: 404 or 410.
            InputError: the keys are refused, or this is no Langfuse.
            SystemFailure: it cannot be reached, or asks for too long a wait.
        """
        for _ in range(_MAX_WAITS):
            status, headers, content = await self._ask(path, params)
            if status != 429:
                return self._read(status, headers, content)
            wait_s = self._wait_s(headers.get("Retry-After"))
            if wait_s > _MAX_WAIT_S:
                break
            self._on_note(f"rate limit, waiting {format_seconds(wait_s)}")
            await self._pause(wait_s)
        raise SystemFailure(
            f"{self.base_url}: the rate limit lets nothing through (429)",
            "run the same command later: it goes on where it stopped",
        )

    async def _ask(self, path: str, params: Sequence[tuple[str, str]]) -> tuple[int, Mapping[str, str], bytes]:
        url = self.base_url + path
        try:
            async with self._session.get(url, params=list(params), allow_redirects=False) as response:
                self._has_answered = True
                return response.status, response.headers, await response.read()
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            raise UsageError(f"'{self.base_url}' is no address of a server", "write langfuse:https://HOST") from None
        except TimeoutError:
            raise Overloaded(f"no answer in {TIMEOUT_S:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            if not self._has_answered:
                raise SystemFailure(f"{self.base_url} cannot be reached: {error}", "check the address") from None
            raise Overloaded(f"the connection broke ({error})") from None

    def _read(self, status: int, headers: Mapping[str, str], content: bytes) -> dict[str, Any]:
        answer = _parse(content)
        message = _message(answer)
        if status == 200:
            if answer is None and "json" in headers.get("Content-Type", ""):
                raise Overloaded("the answer is cut off")
            if answer is None:
                raise not_langfuse(self.base_url)
            return answer
        if status in {404, 410}:
            raise NotServed(message)
        if status in _OVERLOADED or status >= 500:
            raise Overloaded(f"it answers {status}{message}")
        raise self._refusal(status, headers, message)

    def _refusal(self, status: int, headers: Mapping[str, str], message: str) -> Exception:
        if status in {401, 403}:
            return InputError(
                f"{self.base_url} refuses the keys ({status}{message})",
                "LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY must be a project's keys on this host",
            )
        if 300 <= status < 400:
            target = headers.get("Location", "another address")
            return InputError(f"{self.base_url} redirects to {target}", "name the address that answers itself")
        return SystemFailure(f"{self.base_url} answers {status}{message}", "see the server's log")

    def _wait_s(self, retry_after: str | None) -> float:
        """Seconds, or a date (RFC 9110, 10.2.3)."""
        if retry_after is None:
            return _UNSAID_WAIT_S
        try:
            seconds = float(retry_after)
        except ValueError:
            pass
        else:
            return _UNSAID_WAIT_S if math.isnan(seconds) else max(seconds, 0.0)
        try:
            return max((parsedate_to_datetime(retry_after) - self._now()).total_seconds(), 0.0)
        except (ValueError, TypeError, OverflowError):
            return _UNSAID_WAIT_S


def not_langfuse(base_url: str) -> InputError:
    """The server answers, but not as Langfuse does."""
    return InputError(f"{base_url} does not answer as Langfuse does", "check the host, and the path if it has one")


def _parse(content: bytes) -> dict[str, Any] | None:
    try:
        value = load_json(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _message(answer: dict[str, Any] | None) -> str:
    """What the server says, as the end of a clause."""
    told = (answer or {}).get("message") or (answer or {}).get("error")
    return f": {' '.join(told.split())[:200]}" if isinstance(told, str) else ""
