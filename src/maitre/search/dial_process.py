"""A Gaussian process over the logarithms of the dials: what is alike in cells that lie close together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from maitre.records import Cell
from maitre.search.gaussian import Array

NUGGET_SHARE = 0.1
"""Share of the variance that is each cell's own."""

FLAG_DISTANCE = 1.0
"""How far apart cells with other flags are, in the lengths below."""


def dial_covariance(cells: Sequence[Cell], sd: float, lengths: float | tuple[float, float]) -> Array:
    """The covariance of what is off by `sd` at a single cell, shape (cells, cells).

    Args:
        cells: in the order of the rows.
        sd: standard deviation at each cell.
        lengths: how far it stays alike, in doublings of a dial, or of the slots and of the token budget.
    """
    dials = np.log2([(cell.max_num_seqs, cell.max_num_batched_tokens) for cell in cells]) / lengths
    other_flags = [[one.flags != other.flags for other in cells] for one in cells]
    distance = np.sum((dials[:, None] - dials) ** 2, axis=-1) + FLAG_DISTANCE**2 * np.array(other_flags)
    alike = (1 - NUGGET_SHARE) * np.exp(-distance / 2) + NUGGET_SHARE * np.eye(len(dials))
    covariance: Array = sd**2 * alike
    return covariance
