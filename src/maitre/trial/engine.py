"""The seam between what asks for a cell to be measured and what measures it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from maitre.recording import StepRecord
from maitre.records import Cell, FailedTrial, Trial

Watch = Callable[[StepRecord], bool]
"""Is shown the steps so far, now and then during a run; True ends the run."""


class TrialFailure(Exception):  # noqa: N818 - a result, not an error of this program
    """A cell could not be measured; the study goes on with the next."""

    def __init__(self, failed: FailedTrial) -> None:
        super().__init__(failed.message)
        self.failed = failed


@dataclass(frozen=True, slots=True)
class Measurement:
    """What came of one run."""

    trial: Trial | None
    """None if the run was cut short: its figures would not be those of the whole workload."""
    steps: StepRecord | None
    """None if the server does not record its steps."""


class Engine(Protocol):
    """Measures one cell after the other."""

    name: str

    @property
    def cells(self) -> Sequence[Cell] | None:
        """The only cells that it can answer for; None when it can answer for any."""

    def measure(self, cell: Cell, watch: Watch | None = None) -> Measurement:
        """Run the workload at this cell.

        Args:
            cell: the dials.
            watch: may end the run early; engines that cannot end a run do not call it.

        Raises:
            TrialFailure: the cell could not be measured.
        """
