"""One kind of layer in the pool: its page, and how many blocks a sequence holds and how many vLLM reserves."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from maitre.records import Record

Counts = NDArray[np.int64]


class LayerPages(Record):
    """Layers that keep the same part of a sequence in pages of the same size.

    Blocks are counted a block table: vLLM gives each group of layers one, and they all draw from one pool.
    """

    keeps: Literal["all", "window", "chunk", "state"]
    span: int = 0
    """Tokens of the window or the chunk."""
    num_layers: int
    token_bytes: int
    """Of one layer on one GPU, without padding; 0 for a state."""
    page_bytes: int
    """One block of one layer, padding included."""
    block_size: int
    """Tokens in one block."""
    num_states: int = 0
    """Blocks of a sequence's state."""
    num_groups: int = 1
    """Block tables that these layers need."""

    def reserved(self, num_tokens: int, in_flight_tokens: int) -> int:
        """Most blocks that vLLM lets one sequence of so many tokens hold in one block table.

        vLLM 0.32.0, `v1/kv_cache_interface.py`, `max_admission_blocks_per_request`: a window may start within a block.

        Args:
            num_tokens: length of the sequence.
            in_flight_tokens: tokens scheduled and not yet settled, whose blocks are not freed yet.
        """
        if self.keeps == "state":
            return self.num_states
        if self.keeps == "window":
            return -(-min(self.span - 1 + in_flight_tokens, num_tokens) // self.block_size) + 1
        kept = num_tokens if self.keeps == "all" else min(self.span + in_flight_tokens, num_tokens)
        return -(-kept // self.block_size)

    def held(self, num_tokens: Counts) -> Counts:
        """Blocks that a decoding sequence holds in one block table when it computes its token number `num_tokens`.

        vLLM 0.32.0, `v1/core/single_type_kv_cache_manager.py`, `get_num_skipped_tokens`.
        """
        if self.keeps == "state":
            return np.full_like(num_tokens, self.num_states)
        blocks: Counts = -(-num_tokens // self.block_size)
        if self.keeps == "window":
            blocks -= np.maximum(num_tokens - self.span, 0) // self.block_size
        if self.keeps == "chunk":
            blocks -= (num_tokens - 1) // self.span * self.span // self.block_size
        return blocks

    def held_up_to(self, num_tokens: Counts) -> Counts:
        """Sum of `held` over the tokens 1 … `num_tokens`."""
        if self.keeps == "state":
            return self.num_states * num_tokens
        blocks = _sum_of_ceilings(num_tokens, self.block_size)
        if self.keeps == "window":
            return blocks - _sum_of_floors(np.maximum(num_tokens - self.span, 0), self.block_size)
        if self.keeps == "chunk":
            return blocks - self._freed_chunks_up_to(num_tokens)
        return blocks

    def _freed_chunks_up_to(self, num_tokens: Counts) -> Counts:
        """Sum of the blocks of finished chunks over the tokens 1 … `num_tokens`; the last chunk is not full."""
        chunks = num_tokens // self.span
        freed = np.arange(int(chunks.max(initial=0)) + 1, dtype=np.int64) * self.span // self.block_size
        before = np.concatenate([[0], np.cumsum(freed)])[chunks] * self.span
        result: Counts = before + num_tokens % self.span * freed[chunks]
        return result


def _sum_of_ceilings(num_tokens: Counts, block_size: int) -> Counts:
    """Sum of ⌈k / block_size⌉ for k = 1 … num_tokens."""
    full = num_tokens // block_size
    whole: Counts = block_size * full * (full + 1) // 2 + (num_tokens % block_size) * (full + 1)
    return whole


def _sum_of_floors(num_tokens: Counts, block_size: int) -> Counts:
    """Sum of ⌊k / block_size⌋ for k = 0 … num_tokens."""
    full = num_tokens // block_size
    whole: Counts = block_size * full * (full - 1) // 2 + full * (num_tokens % block_size + 1)
    return whole
