"""What a run needs of a server that is up, whoever started it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from maitre.vllm.failures import ServerFailure


class RunningServer(Protocol):
    """A server that answers; `server.Server` if this process started it, `attach_dials.AttachedServer` if not."""

    @property
    def base_url(self) -> str:
        """Where it answers, without `/v1`."""

    @property
    def model(self) -> str:
        """The name that requests use."""

    @property
    def api_key(self) -> str | None:
        """What it asks for."""

    @property
    def log_path(self) -> Path | None:
        """Where its output goes; None if nobody here knows."""

    def is_alive(self) -> bool:
        """Whether it runs, as far as can be told without asking it."""

    def last_lines(self, n: int) -> list[str]:
        """The last `n` lines that it wrote, as far as they are known."""

    def failure(self) -> ServerFailure:
        """Why it does not go on."""

    def stop(self, grace_s: float) -> None:
        """End it, if this process started it."""
