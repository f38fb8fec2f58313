"""Counting the tokens of a stream of server-sent events without reading each one's JSON."""

from __future__ import annotations

import json
from array import array

import numpy as np
from numpy.typing import NDArray

from maitre.errors import InputError
from maitre.files import load_json

_TOKEN = b'"choices":[{'
"""In every event of vLLM that brings a token. Text cannot imitate it: JSON escapes its quotes."""
_DONE = b"[DONE]"


class EventCounter:
    """Takes a stream's bytes in pieces of any size and notes when each event with a token came.

    An event is one token, or more of them when the server was too slow to send each on its own: only the usage at the
    end of the stream counts tokens.
    """

    __slots__ = ("_rest", "arrivals_s", "error", "is_done", "usage_tokens")

    def __init__(self) -> None:
        self.arrivals_s = array("d")
        """Of each event with a token."""
        self.usage_tokens: int | None = None
        """Completion tokens by the server's count, once it has said so."""
        self.is_done = False
        """Whether the server has ended the stream as it should."""
        self.error: str | None = None
        """The server's message, if it gave up in the middle."""
        self._rest = b""

    @property
    def num_tokens(self) -> int:
        """Tokens so far: the server's count, else the events."""
        return len(self.arrivals_s) if self.usage_tokens is None else self.usage_tokens

    @property
    def gaps_s(self) -> NDArray[np.float64]:
        """Seconds between consecutive events, shape (events − 1,)."""
        return np.diff(np.array(self.arrivals_s))

    def feed(self, piece: bytes, now_s: float) -> None:
        """Take the next bytes.

        Raises:
            InputError: an event is no JSON.
        """
        events = (self._rest + piece if self._rest else piece).split(b"\n\n")
        self._rest = events.pop()
        for event in events:
            if _TOKEN in event:
                self.arrivals_s.append(now_s)
            else:
                self._read(event, now_s)

    def _read(self, event: bytes, now_s: float) -> None:
        """An event that is not plainly a token: the end, the usage, an error, a comment, or JSON with spaces."""
        for line in event.splitlines():
            field, _, data = line.partition(b":")
            data = data.strip()
            if field != b"data":
                continue
            if data == _DONE:
                self.is_done = True
                continue
            self._read_json(data, now_s)

    def _read_json(self, data: bytes, now_s: float) -> None:
        try:
            message = load_json(data)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise InputError(
                f"an event that is no JSON object: {data[:100]!r}",
                "see the server's log; a gateway between may have changed the stream",
            )
        if message.get("error"):
            self.error = error_text(data)
        if message.get("choices"):
            self.arrivals_s.append(now_s)
        self.usage_tokens = usage_tokens(message) or self.usage_tokens


def usage_tokens(message: object) -> int | None:
    """The completion tokens that an answer or event counts; None when it counts none."""
    usage = message.get("usage") if isinstance(message, dict) else None
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None


def error_text(body: bytes) -> str:
    """What a server says about an error, without the JSON around it, at most 500 characters.

    vLLM writes {"error": {"message": …}}, before 0.10 {"message": …}; FastAPI {"detail": …}.
    """
    text = body.decode(errors="replace").strip()
    try:
        message = load_json(text)
    except (ValueError, RecursionError):
        return text[:500]
    for key in ("error", "message", "detail"):
        if isinstance(message, dict) and message.get(key):
            message = message[key]
    return (message if isinstance(message, str) else json.dumps(message))[:500]
