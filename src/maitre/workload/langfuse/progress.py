"""How far a read from a server has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class FetchProgress(NamedTuple):
    """Told after every page, and before every wait."""

    num_read: int
    """Generations so far."""
    share: float
    """Of the time window, from 0 to 1."""
    note: str
    """What it waits for; empty when it goes on."""


OnProgress = Callable[[FetchProgress], None]
