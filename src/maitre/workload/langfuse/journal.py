"""What an interrupted read has got so far, on disk: the same question asked again goes on from there.

One file a question in `$XDG_CACHE_HOME/maitre/langfuse` (else `~/.cache`): a line that says what was asked, then a line
for each finished window. It holds ids, model names, times and token counts; no texts, no keys. A finished read removes
it, and one older than a day is begun again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maitre.errors import SystemFailure
from maitre.files import load_json
from maitre.workload.langfuse.observation import Observation
from maitre.workload.langfuse.selection import Window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SCHEMA = "maitre-langfuse-journal-1"
_MAX_AGE_MS = 24 * 3600 * 1000
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The times that a `datetime` knows: years 1 to 9999."""
_MAX_US = 1000 * _LAST_MS
_MAX_SUM = 2**40
"""Tokens of one call, however many keys its usage has."""


class Journal:
    """The file of one question."""

    def __init__(self, path: Path, window: Window, now_ms: int) -> None:
        """Open a journal.

        Args:
            path: the file, which need not exist.
            window: what to read when there is no journal; one that is there keeps its own, so that `7d` stays what it
                was when the read began.
            now_ms: the time, in milliseconds since 1970.
        """
        self._path, self._begun_ms = path, now_ms
        self.observations: list[Observation] = []
        self.window, self.done_until_ms = window, window.since_ms
        self.is_resumed = self._resume(now_ms)

    @property
    def rest(self) -> Window:
        """What is still to be read."""
        return Window(self.done_until_ms, self.window.until_ms)

    def add(self, part: Window, observations: list[Observation]) -> None:
        """Keep a finished window.

        Raises:
            SystemFailure: the disk or the permissions refuse.
        """
        self.observations += observations
        self.done_until_ms = part.until_ms
        header = {"schema_version": _SCHEMA, "window": list(self.window), "begun_ms": self._begun_ms}
        line = {"until_ms": part.until_ms, "observations": [astuple(call) for call in observations]}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._path.open("a", encoding="utf-8") as file:
                for record in (line,) if file.tell() else (header, line):
                    file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise SystemFailure(
                f"{self._path}: cannot be written ({error.strerror})",
                "check the disk, or set XDG_CACHE_HOME to another folder",
            ) from error

    def remove(self) -> None:
        """Nothing is left to be read."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _resume(self, now_ms: int) -> bool:
        """Take what is there; a torn or foreign file counts as far as it can be read, and loses the rest."""
        lines, begun_ms, window = [], -1, self.window
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
            lines = self._path.read_text("utf-8").splitlines()
            header = load_json(lines[0])
            if header["schema_version"] == _SCHEMA:
                begun_ms, window = int(header["begun_ms"]), Window(*map(int, header["window"]))
        num_lines = 0
        is_window = _FIRST_MS <= window.since_ms < window.until_ms <= _LAST_MS
        if begun_ms >= 0 and 0 <= now_ms - begun_ms < _MAX_AGE_MS and is_window:
            self._begun_ms, self.window, self.done_until_ms = begun_ms, window, window.since_ms
            num_lines = 1 + self._take(lines[1:])
        if num_lines < 2:
            self.remove()
        elif num_lines < len(lines):
            with contextlib.suppress(OSError):
                self._path.write_text("".join(f"{line}\n" for line in lines[:num_lines]), encoding="utf-8")
        return num_lines >= 2

    def _take(self, lines: list[str]) -> int:
        """Take the finished windows in some lines; returns how many could be read."""
        for number, line in enumerate(lines):
            try:
                record = load_json(line)
                until_ms, rows = int(record["until_ms"]), list(record["observations"])
                is_sound = all(map(_is_sound, rows)) and self.done_until_ms < until_ms <= self.window.until_ms
            except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
                return number
            if not is_sound:
                return number
            self.done_until_ms = until_ms
            self.observations += [Observation(*values) for values in rows]
        return len(lines)


def _is_sound(values: Sequence[Any]) -> bool:
    """Whether these are values that `read_observation` gives; whoever else wrote the file may have put in anything."""
    call_id, model, start_us, end_us, ttft_s, prompt_tokens, cached_tokens, output_tokens, reason = values
    counts = (prompt_tokens, cached_tokens, output_tokens)
    return (
        all(isinstance(text, str) for text in (call_id, model, reason))
        and all(time_us is None or (type(time_us) is int and abs(time_us) < _MAX_US) for time_us in (start_us, end_us))
        and (ttft_s is None or (isinstance(ttft_s, float) and 0 <= ttft_s < _MAX_US))
        and all(type(count) is int and 0 <= count < _MAX_SUM for count in counts)
        and (prompt_tokens > 0 or reason != "")
    )


def journal_path(environ: Mapping[str, str], question: Mapping[str, Any]) -> Path:
    """Where the journal of a question lies: its name is a hash of the question."""
    cache = environ.get("XDG_CACHE_HOME")
    folder = Path(cache) if cache else Path.home() / ".cache"
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:24]
    return folder / "maitre" / "langfuse" / f"{digest}.jsonl"
