"""The seam between what asks for a cell and what answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from maitre.records import Cell, FailedTrial, Trial


class TrialFailure(Exception):  # noqa: N818 - a result, not an error of this program
    """A cell could not be measured; the study goes on with the next."""

    def __init__(self, failed: FailedTrial) -> None:
        super().__init__(failed.message)
        self.failed = failed


class Engine(Protocol):
    """Runs one cell over the workload and says what came out."""

    name: str

    @property
    def cells(self) -> Sequence[Cell] | None:
        """The only cells that it can answer for; None when it can answer for any."""

    def run(self, cell: Cell) -> Trial:
        """Run the workload at this cell.

        Raises:
            TrialFailure: the cell could not be measured.
        """

    def log_time_draws(
        self, cells: Sequence[Cell], num_draws: int, generator: np.random.Generator
    ) -> NDArray[np.float64]:
        """How far the time of each cell may be off, as logarithms around its trial, shape (num_draws, cells)."""
