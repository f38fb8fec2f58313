"""How prompt and output lengths go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maitre.records import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray


class JointLengths(Record):
    """Requests counted by prompt and output length, in bins [edge, next edge) whose edges are powers of two."""

    prompt_edges: tuple[int, ...]
    """P + 1 edges in tokens."""
    output_edges: tuple[int, ...]
    """O + 1 edges in tokens."""
    counts: tuple[tuple[int, ...], ...]
    """P rows of O counts; they add up to the number of requests."""


def count_joint_lengths(prompt_tokens: NDArray[np.int64], output_tokens: NDArray[np.int64]) -> JointLengths:
    """Count requests in a grid of powers of two.

    Args:
        prompt_tokens: shape (n,), each ≥ 1.
        output_tokens: shape (n,), each ≥ 1.
    """
    prompt_bins, prompt_edges = _bin(prompt_tokens)
    output_bins, output_edges = _bin(output_tokens)
    shape = (len(prompt_edges) - 1, len(output_edges) - 1)
    flat = np.bincount(prompt_bins * shape[1] + output_bins, minlength=shape[0] * shape[1])
    counts = tuple(tuple(row) for row in flat.reshape(shape).tolist())
    return JointLengths(prompt_edges=prompt_edges, output_edges=output_edges, counts=counts)


def spearman(x: NDArray[np.int64], y: NDArray[np.int64]) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None when x or y does not vary.

    Args:
        x: shape (n,).
        y: shape (n,).
    """
    ranks_x, ranks_y = _ranks(x), _ranks(y)
    if np.ptp(ranks_x) == 0 or np.ptp(ranks_y) == 0:
        return None
    return float(np.corrcoef(ranks_x, ranks_y)[0, 1])


def _bin(tokens: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    exponents = np.frexp(tokens)[1].astype(np.int64) - 1  # floor(log2), exact
    low, high = int(exponents.min()), int(exponents.max())
    return exponents - low, tuple(2**exponent for exponent in range(low, high + 2))


def _ranks(values: NDArray[np.int64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]
