"""Grids of cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from maitre.errors import UsageError
from maitre.records import Cell, Workload

CLASSICAL_SEQS = (32, 64, 128, 256, 512)
CLASSICAL_TOKENS = (4096, 8192, 16384, 32768, 65536)
LARGEST_SEQS = 1024
"""vLLM's largest default, and beyond the largest CUDA graph on every GPU."""


def classical_grid() -> list[Cell]:
    """The 5 × 5 grid that people run by hand."""
    return product_grid(CLASSICAL_SEQS, CLASSICAL_TOKENS)


def product_grid(max_num_seqs: Sequence[int], max_num_batched_tokens: Sequence[int]) -> list[Cell]:
    """Every pair that vLLM accepts: it refuses a token budget below max_num_seqs.

    Raises:
        UsageError: a value has no partner, so that a row or column of the grid would be empty.
    """
    seqs, tokens = sorted(set(max_num_seqs)), sorted(set(max_num_batched_tokens))
    for value in seqs:
        if value > tokens[-1]:
            raise _refused(value, tokens[-1])
    for value in tokens:
        if value < seqs[0]:
            raise _refused(seqs[0], value)
    return [Cell(max_num_seqs=s, max_num_batched_tokens=t) for t in tokens for s in seqs if s <= t]


def auto_grid(workload: Workload, kv_tokens: int, present: Cell) -> list[Cell]:
    """A ladder in factors of two around what the KV pool and the workload can use, with the present cell in it.

    Slots: from an eighth to the double of the sequences that the pool holds at their mean footprint, or of the requests
    where these are fewer. Tokens: from 512 up to the most that one step could ever use.

    Args:
        workload: its lengths.
        kv_tokens: usable tokens of the KV pool.
        present: the cell to compare with.
    """
    footprint = float(np.mean(workload.prompt_tokens + workload.output_tokens / 2))
    num_fit = min(kv_tokens / footprint, workload.num_requests)
    middle = max(8, 8 * round(min(num_fit, LARGEST_SEQS / 2) / 8))
    seqs = {max(8, 8 * round(middle * 2.0**k / 8)) for k in (-3, -2, -1, 0, 1)}
    usable = max(seqs) * float(np.percentile(workload.prompt_tokens, 99))
    ladder = [t for t in (512, 1024, 2048, 4096, 8192, 16384, 32768) if t >= max(seqs)]
    tokens = [ladder[0], *(t for t in ladder if t / 2 <= usable)]
    return product_grid([*seqs, present.max_num_seqs], [*tokens, present.max_num_batched_tokens])


def _refused(seqs: int, tokens: int) -> UsageError:
    return UsageError(
        f"max_num_batched_tokens ({tokens}) must be at least max_num_seqs ({seqs}); vLLM refuses to start otherwise",
        "raise the token budget or lower max_num_seqs",
    )
