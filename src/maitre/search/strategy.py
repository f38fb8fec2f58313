"""The seam between what chooses the next cell to measure and what measures it: ask, watch, tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from maitre.recording import StepRecord
from maitre.records import Cell, FailedTrial


@dataclass(frozen=True, slots=True)
class Ask:
    """The next run."""

    cell: Cell
    reason: str
    """What the run is expected to settle, in words."""


@dataclass(frozen=True, slots=True)
class Told:
    """What came of a run."""

    cell: Cell
    duration_s: float | None
    """Of the whole workload; None if the run was cut short or failed."""
    steps: StepRecord | None = None
    """What the server computed, if it records its steps."""
    failed: FailedTrial | None = None

    @property
    def measured_s(self) -> float:
        """Seconds that the run took."""
        if self.duration_s is not None:
            return self.duration_s
        return float(self.steps.step_end_s[-1]) if self.steps is not None else 0.0


class Strategy(Protocol):
    """Chooses cells until it knows enough. After each ask comes one tell."""

    def ask(self) -> Ask | None:
        """The next run; None when no further run is needed."""

    def watch(self, steps: StepRecord) -> bool:
        """Whether the run that was asked for last has shown enough, from its steps so far."""

    def tell(self, told: Told) -> None:
        """What came of it."""

    def recommend(self) -> Cell:
        """The best cell as far as is known; after at least one run that did not fail."""
