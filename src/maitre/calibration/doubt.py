"""How far a step time may be off, in the few directions that matter, and how far each cell may be off beside that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maitre.calibration.flags import flag_covariance
from maitre.records import Cell

LENGTH_OCTAVES = 2.0
"""How far, in doublings of a dial, the simulator's error stays alike (modelling notes: 1 to 2)."""

ENOUGH = 0.95
"""Share of the variance of the cells' times."""


def leading_directions(covariance: NDArray[np.float64], shares: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """The independent changes of the step time that move the cells' times most.

    With log θ ~ N(log θ̂, Σ) the logarithms of the cells' times vary as A·(log θ − log θ̂), where a row of A holds the
    coefficients' shares of a cell's time. The right singular vectors v of A·Σ^½ are the independent directions, the
    most telling first; one standard deviation along one of them changes log θ by Σ^½·v.

    Args:
        covariance: Σ of the logarithms of the coefficients, shape (7, 7).
        shares: A, shape (cells, 7), each row adds up to 1.
        most: directions at most; as few as make up `ENOUGH` of the variance of the cells' times are taken.

    Returns:
        Shape (directions, 7): one standard deviation of each, as changes of log θ.
    """
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    _, spreads, directions = np.linalg.svd(shares @ root, full_matrices=False)
    variance = np.cumsum(spreads**2)
    if variance[-1] == 0:
        return np.zeros((0, len(covariance)))
    num_enough = int(np.searchsorted(variance, ENOUGH * variance[-1])) + 1
    leading: NDArray[np.float64] = directions[: min(most, num_enough)] @ root
    return leading


def draw_cell_offsets(
    cells: Sequence[Cell], cell_sd: float, num_draws: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Relative errors of the cells' times that no step time explains: alike in neighbouring cells, and by their flags.

    Args:
        cells: their dials.
        cell_sd: standard deviation in each cell.
        num_draws: how many.
        generator: of the draws.

    Returns:
        Shape (num_draws, cells).
    """
    dials = np.log2([(cell.max_num_seqs, cell.max_num_batched_tokens) for cell in cells])
    distance = np.sum((dials[:, None] - dials) ** 2, axis=-1)
    alike = cell_sd**2 * np.exp(-distance / (2 * LENGTH_OCTAVES**2)) + flag_covariance(cells)
    offsets: NDArray[np.float64] = generator.multivariate_normal(np.zeros(len(cells)), alike, num_draws, method="eigh")
    return offsets
