"""A long time in windows that the server can bear: halved when it is overloaded, doubled when one was easy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from maitre.errors import SystemFailure
from maitre.workload.langfuse.connection import Overloaded, Pause
from maitre.workload.langfuse.selection import Window

if TYPE_CHECKING:
    from maitre.workload.langfuse.observation import Observation

FIRST_STEP_MS = 24 * 3600 * 1000
"""A day."""
_MIN_STEP_MS = 1000
_EASY_PAGES, _MANY_PAGES = 5, 20
"""A window of few pages may grow; one of many is halved, so that an interruption loses little."""
_MAX_FAILURES = 8
"""In a row; the window is then 1/256 of what it was, and two minutes have passed."""
_MAX_PAUSE_S = 30.0

WindowReader = Callable[[Window], Awaitable[tuple[list["Observation"], int]]]
"""The observations of a window, and how many pages they took."""


class Patience:
    """Waits after each failure in a row, and gives up after some."""

    def __init__(self, base_url: str, pause: Pause, on_note: Callable[[str], None]) -> None:
        self._base_url, self._pause, self._on_note = base_url, pause, on_note
        self._num_failures = 0

    async def fail(self, error: Overloaded) -> None:
        """Wait 1, 2, 4 … 30 s.

        Raises:
            SystemFailure: this was one failure too many.
        """
        self._num_failures += 1
        if self._num_failures > _MAX_FAILURES:
            raise SystemFailure(
                f"{self._base_url}: {error}, {self._num_failures} times in a row",
                "run the same command later: it goes on where it stopped",
            ) from None
        self._on_note(f"{error}; asking for less")
        await self._pause(min(2.0 ** (self._num_failures - 1), _MAX_PAUSE_S))

    def succeed(self) -> None:
        """The failures before are forgotten."""
        self._num_failures = 0


async def read_windows(
    read: WindowReader, whole: Window, patience: Patience
) -> AsyncIterator[tuple[Window, list[Observation]]]:
    """Read a long window in parts, oldest first.

    Args:
        read: reads one window; a failed one is read again in smaller parts.
        whole: what to read.
        patience: decides how many failures in a row are borne.

    Yields:
        Each part and its observations.

    Raises:
        SystemFailure: the server stays overloaded.
    """
    start, step = whole.since_ms, FIRST_STEP_MS
    while start < whole.until_ms:
        part = Window(start, min(start + step, whole.until_ms))
        try:
            observations, num_pages = await read(part)
        except Overloaded as error:
            await patience.fail(error)
            step = max((part.until_ms - part.since_ms) // 2, _MIN_STEP_MS)
            continue
        patience.succeed()
        yield part, observations
        start = part.until_ms
        if num_pages <= _EASY_PAGES:
            step *= 2
        elif num_pages > _MANY_PAGES:
            step = max(step // 2, _MIN_STEP_MS)
