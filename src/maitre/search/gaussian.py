"""A joint normal distribution that learns from linear observations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """y = design · z + noise, with noise ~ N(0, covariance)."""

    design: Array
    """Shape (k, n)."""
    values: Array
    """Shape (k,)."""
    covariance: Array
    """Shape (k, k)."""


@dataclass(frozen=True, slots=True, eq=False)
class Gaussian:
    """z ~ N(mean, covariance)."""

    mean: Array
    """Shape (n,)."""
    covariance: Array
    """Shape (n, n)."""

    def given(self, observation: Observation) -> Gaussian:
        """The distribution after an observation."""
        design = observation.design
        cross = self.covariance @ design.T
        gain = np.linalg.solve(design @ cross + observation.covariance, cross.T).T
        mean = self.mean + gain @ (observation.values - design @ self.mean)
        covariance = self.covariance - gain @ cross.T
        return Gaussian(mean, (covariance + covariance.T) / 2)

    def log_density(self, observation: Observation) -> float:
        """How likely the observation is, as the logarithm of its density."""
        design = observation.design
        spread = design @ self.covariance @ design.T + observation.covariance
        off = observation.values - design @ self.mean
        _, log_determinant = np.linalg.slogdet(spread)
        return float(-0.5 * (off @ np.linalg.solve(spread, off) + log_determinant + len(off) * np.log(2 * np.pi)))

    def image(self, matrix: Array, offset: Array) -> Gaussian:
        """The distribution of offset + matrix · z."""
        return Gaussian(offset + matrix @ self.mean, matrix @ self.covariance @ matrix.T)

    def plus(self, other: Gaussian) -> Gaussian:
        """The distribution of the sum with a vector that is independent of this one."""
        return Gaussian(self.mean + other.mean, self.covariance + other.covariance)

    def draws(self, num_draws: int, generator: np.random.Generator) -> Array:
        """Shape (num_draws, n)."""
        values, vectors = np.linalg.eigh(self.covariance)
        factor = vectors * np.sqrt(np.maximum(values, 0))
        draws: Array = self.mean + generator.standard_normal((num_draws, len(self.mean))) @ factor.T
        return draws
