"""Searches that know their cells beforehand: every cell, or some of them at random. What a cleverer one has to beat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from maitre.recording import StepRecord
from maitre.records import Cell
from maitre.search.strategy import Ask, Told


class FixedOrder:
    """Measures the given cells once each, and recommends the fastest of them."""

    def __init__(self, order: Sequence[Cell]) -> None:
        self._waiting = list(dict.fromkeys(order))
        self._num_cells = len(self._waiting)
        self._measured_s: dict[Cell, float] = {}

    def ask(self) -> Ask | None:
        """The next cell in the order; None after the last."""
        if not self._waiting:
            return None
        number = self._num_cells - len(self._waiting) + 1
        return Ask(self._waiting[0], f"cell {number} of {self._num_cells}")

    def watch(self, steps: StepRecord) -> bool:  # noqa: ARG002 - the seam's
        """No run is cut short."""
        return False

    def tell(self, told: Told) -> None:
        """Take the cell off the list, whatever came of it."""
        self._waiting = [cell for cell in self._waiting if cell != told.cell]
        if told.duration_s is not None:
            self._measured_s[told.cell] = told.duration_s

    def recommend(self) -> Cell:
        """The fastest cell so far.

        Raises:
            ValueError: no cell has been measured.
        """
        return min(self._measured_s, key=self._measured_s.__getitem__)


def every_cell(cells: Sequence[Cell], baseline: Cell) -> FixedOrder:
    """The plain grid: the present setting first, then all the others in their order."""
    return FixedOrder([baseline, *cells])


def random_cells(cells: Sequence[Cell], baseline: Cell, num_cells: int, seed: int) -> FixedOrder:
    """The present setting, then others in random order, none twice.

    Args:
        cells: the grid.
        baseline: the present setting, which a gain is counted from.
        num_cells: how many to measure, the present setting included.
        seed: of the order.
    """
    others = [cell for cell in cells if cell != baseline]
    order = np.random.default_rng(seed).permutation(len(others))
    return FixedOrder([baseline, *(others[i] for i in order)][:num_cells])
