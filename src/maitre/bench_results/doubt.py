"""One doubt about a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Doubt:
    """What is odd about a run, and what to do about it."""

    code: str
    evidence: str
    remedy: str
    fatal: bool = False
    """Whether the result may not be compared with others at all."""
    ignore: tuple[str, ...] = ()
    """Figures that mean nothing because of it."""

    def __str__(self) -> str:
        return f"{self.evidence}; {self.remedy}"
