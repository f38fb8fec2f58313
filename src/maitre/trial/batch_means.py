"""The interval of a long-run mean from one run whose values depend on their neighbours: the method of batch means.

The run is cut into k batches of equal length, so long that batches hardly depend on each other, and the k means are
treated as a sample:

    mean ± t(k − 1) · s/√k · √((1 + r)/(1 − r))

s is the standard deviation of the batches, r their lag-1 autocorrelation where it is above 0. The last factor is what
is left of the dependence, taken as autoregressive of order one (Bayley and Hammersley, J. Royal Stat. Soc. Suppl. 8,
1946: the effective number of independent observations). More than 30 batches add little (Schmeiser, Operations
Research 30, 1982, who finds 10 to 30 enough for any run length).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_BATCHES, MAX_BATCHES = 3, 30
"""With two batches Student's t is 12.7: the interval would say nothing."""

_T_975 = (
    4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip
"""Student's t at 97.5 % for 2 to 29 degrees of freedom; a table, because SciPy takes half a second to import."""


@dataclass(frozen=True, slots=True)
class BatchMeans:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float
    num_batches: int
    lag1_autocorrelation: float


def batch_means(batches: NDArray[np.float64]) -> BatchMeans | None:
    """The mean of batches of equal length, with its 95 % interval.

    Args:
        batches: mean of each batch in the order of time, shape (k,), k up to `MAX_BATCHES`.

    Returns:
        None for fewer than `MIN_BATCHES`.
    """
    k = len(batches)
    if k < MIN_BATCHES:
        return None
    mean = float(batches.mean())
    deviations = batches - mean
    squares = float(deviations @ deviations)
    lag1 = float(deviations[1:] @ deviations[:-1]) / squares if squares else 0.0
    standard_error = math.sqrt(squares / (k - 1) / k)
    dependence = math.sqrt((1 + max(lag1, 0.0)) / (1 - max(lag1, 0.0)))
    half_width = _T_975[k - MIN_BATCHES] * standard_error * dependence
    return BatchMeans(mean, mean - half_width, mean + half_width, k, lag1)
