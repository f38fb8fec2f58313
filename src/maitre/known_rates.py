"""What is known of the highest rates of all cells, given the runs so far.

Runs teach the step time θ and each cell's own δ (`maitre.search.posterior`); the highest rates follow in the simulator,
each at θ and δ, and how far they may be off along a few curves (`maitre.search.merit_spread`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import Calibration
from maitre.calibration.doubt import leading_directions
from maitre.records import Cell
from maitre.search.evidence import Evidence
from maitre.search.merit_spread import (
    LEAST_SCALE,
    NUM_DIRECTIONS,
    OUT_OF_REACH,
    MeritSpread,
    along_curves,
    contenders,
    find_spread,
)
from maitre.search.posterior import Posterior
from maitre.simulator.surface import ReplayedSurface
from maitre.trial.highest_rate import HighestRateFound
from maitre.trial.rate_surface import RateSurface, in_reach, nearest

Array = NDArray[np.float64]

NUM_DRAWS = 2000
COARSE = 0.03
"""Tolerance of the searches with other step times; their crossings are interpolated."""


class KnownRates:
    """Highest rates with one set of runs."""

    def __init__(
        self,
        cells: Sequence[Cell],
        baseline: Cell,
        rates: RateSurface,
        schedules: ReplayedSurface,
        prior: Calibration,
        runs: Sequence[Evidence],
        generator: np.random.Generator,
        before: KnownRates | None = None,
    ) -> None:
        """Learn from the runs.

        Args:
            cells: the surface.
            baseline: the present setting.
            rates: finds highest rates in the simulator.
            schedules: of the same requests, all at once.
            prior: what is known of the step time before anything is measured.
            runs: at least one.
            generator: of the draws from the posterior.
            before: what was known with fewer runs; the searches begin there.
        """
        self.rates = rates
        self._cells = tuple(cells)
        self._posterior = Posterior(schedules, prior, cells, runs)
        known = self._posterior.parameters
        self.coefficients = {
            cell: self._posterior.coefficients * np.exp(known.mean[:7] + own)
            for cell, own in zip(self._cells, known.mean[7:], strict=True)
        }
        """The step time of each cell, its own δ included, shape (7,)."""
        self.found: dict[Cell, HighestRateFound] = {}
        """The highest rate of each cell."""
        for cell in in_reach(self._cells):
            self.found[cell] = rates.find(cell, self.coefficients[cell], self._guess(cell, before))
        self.changes = self._draw(baseline, generator)
        """How far the logarithms of the rates may be off, shape (draws, cells)."""

    @property
    def trust(self) -> float:
        """How likely it is that the simulator explains what was measured, 0 to 1."""
        return self._posterior.trust

    def sample_changes(self, cell: Cell, others: Sequence[RateSurface]) -> Array:
        """Changes of the logarithm of a cell's highest rate in other samples of the traffic, shape (samples,)."""
        crossing_rps = self.found[cell].crossing_rps
        rates = [
            other.find(cell, self.coefficients[cell], crossing_rps, tolerance=COARSE).crossing_rps for other in others
        ]
        changes: Array = np.log(np.maximum(rates, np.exp(OUT_OF_REACH) * crossing_rps) / crossing_rps)
        return changes

    def _guess(self, cell: Cell, before: KnownRates | None) -> float | None:
        if before is not None:
            return before.found[cell].rate_rps
        near = nearest(cell, self.found)
        return None if near is None else self.found[near].rate_rps

    def _draw(self, baseline: Cell, generator: np.random.Generator) -> Array:
        crossings = {cell: found.crossing_rps for cell, found in self.found.items()}
        tried = contenders(crossings, baseline)
        if not tried:
            return np.zeros((1, len(self._cells)))
        known = self._posterior.parameters
        covariance = known.covariance[:7, :7]
        shares = {cell: self.rates.paced.time_shares(cell, self.coefficients[cell], crossings[cell]) for cell in tried}
        directions = leading_directions(covariance, np.stack(list(shares.values())), NUM_DIRECTIONS)
        spreads = {cell: self._spread(cell, crossings[cell], directions, shares[cell]) for cell in tried}
        near = {cell: nearest(cell, spreads) or tried[0] for cell in self._cells}
        off = known.draws(NUM_DRAWS, generator) - known.mean
        shared = off[:, :7] @ np.linalg.pinv(covariance, hermitian=True) @ directions.T
        return along_curves(self._cells, lambda cell: spreads[near[cell]], shared, off[:, 7:] / LEAST_SCALE)

    def _spread(self, cell: Cell, crossing_rps: float, directions: Array, shares: Array) -> MeritSpread:
        def crossing(step: Array) -> float:
            guess_rps = crossing_rps * float(np.exp(-shares @ step))
            theta = self.coefficients[cell] * np.exp(step)
            return self.rates.find(cell, theta, guess_rps, tolerance=COARSE).crossing_rps

        return find_spread(crossing_rps, crossing, lambda _: crossing_rps, directions, LEAST_SCALE, num_samples=0)
