"""One request: sent, followed to its end, and told as an outcome. Nothing that goes wrong here is raised."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from maitre.errors import InputError
from maitre.trial.load.events import EventCounter, error_text, usage_tokens
from maitre.trial.load.outcome import ErrorKind, RequestOutcome
from maitre.trial.load.plan import PlannedRequest


@dataclass(frozen=True, slots=True)
class Target:
    """The server to load."""

    base_url: str
    """With or without /v1 at the end."""
    model: str
    """As the server calls it."""
    api_key: str | None = field(default=None, repr=False)

    def url(self, path: str) -> str:
        """Address of a path such as /v1/models."""
        return self.base_url.rstrip("/").removesuffix("/v1") + path

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        headers = {"Content-Type": "application/json"}
        return headers if self.api_key is None else headers | {"Authorization": f"Bearer {self.api_key}"}


class Exchange:
    """A request under way. What it has learned so far stays when it breaks off."""

    def __init__(self, request: PlannedRequest, now: Callable[[], float], *, is_streaming: bool) -> None:
        self._request, self._now, self._is_streaming = request, now, is_streaming
        self._events = EventCounter()
        self._status: int | None = None
        self._end_s: float | None = None
        self._num_tokens = 0
        self._error: tuple[ErrorKind, str] | None = None

    async def run(
        self, session: aiohttp.ClientSession, url: str, body: bytes, request_id: str, *, intended_s: float,
        timeout_s: float,
    ) -> RequestOutcome:  # fmt: skip
        """Send it and follow it.

        Args:
            session: with the headers that all requests share.
            url: of the completions endpoint.
            body: the JSON to post.
            request_id: for the X-Request-Id header.
            intended_s: when it should be sent, on the clock that counts from the run's start.
            timeout_s: from sending to the last token.
        """
        sent_s = self._now()
        try:
            async with (
                asyncio.timeout(timeout_s),
                session.post(url, data=body, headers={"X-Request-Id": request_id}, allow_redirects=False) as response,
            ):
                await self._follow(response)
        except (aiohttp.ClientError, OSError, InputError, ValueError, RecursionError) as error:
            self._error = (_kind_of(error), _text_of(error, timeout_s))
        return self._outcome(intended_s, sent_s)

    async def _follow(self, response: aiohttp.ClientResponse) -> None:
        self._status = response.status
        if response.status != 200:
            self._error = (_kind_of_status(response.status), error_text(await response.read()))
        elif self._is_streaming:
            await self._count(response.content)
        else:
            answer = await response.read()
            self._end_s = self._now()
            self._num_tokens = usage_tokens(json.loads(answer)) or 0

    async def _count(self, content: aiohttp.StreamReader) -> None:
        events, now = self._events, self._now
        while piece := await content.readany():
            events.feed(piece, now())
        if events.error is not None:
            self._error = ("server-error", events.error)

    def _outcome(self, intended_s: float, sent_s: float) -> RequestOutcome:
        events = self._events
        num_tokens, first_s, last_s, gaps_s = self._num_tokens, None, self._end_s, None
        if self._is_streaming:
            num_tokens, gaps_s = events.num_tokens, events.gaps_s
            if events.arrivals_s:
                first_s, last_s = events.arrivals_s[0], events.arrivals_s[-1]
        asked = self._request.output_tokens
        if self._error is None and num_tokens != asked:
            self._error = ("wrong-length", f"{num_tokens} tokens came, {asked} were asked for")
        kind, text = self._error or (None, "")
        return RequestOutcome(
            self._request.index, intended_s, sent_s, first_s, last_s, num_tokens, self._status, kind, text, gaps_s
        )


def _kind_of(error: Exception) -> ErrorKind:
    if isinstance(error, TimeoutError):
        return "timed-out"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "refused"
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | OSError):
        return "reset"
    return "bad-answer"


def _kind_of_status(status: int) -> ErrorKind:
    if status >= 500:
        return "server-error"
    return "rejected" if status >= 400 else "bad-answer"


def _text_of(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no end within {timeout_s:g} s"
    text = error.args[0] if isinstance(error, InputError) else str(error)
    return text or type(error).__name__
