"""The highest rate of every cell: each search begins at the answer of the nearest cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import hypot, log2

import numpy as np
from numpy.typing import NDArray

from maitre.records import Cell, HighestRate, Trial
from maitre.slo import LatencyTarget
from maitre.trial.highest_rate import TOLERANCE, HighestRateFound, highest_rate
from maitre.trial.metrics import summarize
from maitre.trial.paced import PacedSurface


class RateSurface:
    """Finds highest rates, with one set of targets."""

    def __init__(self, paced: PacedSurface, targets: Sequence[LatencyTarget]) -> None:
        self.paced = paced
        self.targets = tuple(targets)

    def resampled(self, seed: int) -> RateSurface:
        """The same for another sample of the traffic."""
        return RateSurface(self.paced.resampled(seed), self.targets)

    def find(
        self,
        cell: Cell,
        coefficients: NDArray[np.float64],
        guess_rps: float | None = None,
        *,
        tolerance: float = TOLERANCE,
    ) -> HighestRateFound:
        """The highest rate of one cell.

        Args:
            cell: the dials.
            coefficients: of the step time, shape (7,).
            guess_rps: where it may be; 0 if perhaps nowhere.
            tolerance: of the search.

        Raises:
            DoesNotFitError: a request is larger than the KV pool.
        """
        return highest_rate(
            lambda rate_rps: self.paced.run(cell, coefficients, rate_rps),
            lambda: self.paced.run_alone(cell, coefficients),
            self.targets,
            self.paced.capacity_rps(cell, coefficients),
            guess_rps=guess_rps,
            tolerance=tolerance,
        )

    def trial(self, found: HighestRateFound) -> Trial:
        """The figures of a cell at its highest rate."""
        trial = summarize(found.run, self.paced.workload, engine="simulated", targets=self.targets)
        highest = HighestRate(
            rate_rps=found.rate_rps,
            bound_by=str(found.bound_by) if found.bound_by else "capacity",
            capacity_rps=found.capacity_rps,
        )
        return trial.model_copy(update={"highest_rate": highest})


def nearest(cell: Cell, others: Iterable[Cell]) -> Cell | None:
    """The nearest of the other cells in doublings of the dials; None if there are none."""

    def distance(other: Cell) -> float:
        tokens = log2(other.max_num_batched_tokens / cell.max_num_batched_tokens)
        return hypot(log2(other.max_num_seqs / cell.max_num_seqs), tokens)

    return min(others, key=distance, default=None)


def in_reach(cells: Iterable[Cell]) -> Iterator[Cell]:
    """The cells in an order in which each is near to one before it."""
    yield from sorted(cells, key=lambda cell: (cell.max_num_batched_tokens, cell.max_num_seqs))
