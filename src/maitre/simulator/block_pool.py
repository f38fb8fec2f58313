"""The KV pool: how many blocks are free, and with prefix caching also which contents they still hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from maitre.simulator.sequence import Sequence

_SEGMENT = 512


class KvPool(Protocol):
    """What the scheduler asks of a KV pool. Amounts are numbers of blocks unless a name says tokens."""

    num_free: int

    def find_cached_tokens(self, sequence: Sequence) -> int:
        """Tokens at the start of the sequence whose blocks are in the prefix cache."""

    def num_needed(self, sequence: Sequence, num_tokens: int, num_cached_tokens: int) -> int:
        """Free blocks that a sequence takes when it is admitted with room for `num_tokens`."""

    def admit(self, sequence: Sequence, num_tokens: int, num_cached_tokens: int) -> None:
        """Give a waiting sequence its blocks for `num_tokens`, cached ones first."""

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Grow the blocks of a running sequence to hold `num_tokens`."""

    def extend_by_one(self, sequences: Iterable[Sequence]) -> None:
        """One more block for each, in this order."""

    def release(self, sequence: Sequence, num_tokens: int, num_known_tokens: int) -> None:
        """Take back the blocks of `num_tokens`; the full ones among the first `num_known_tokens` stay cached."""


class BlockPool:
    """A pool without prefix caching: all that matters is how many blocks are free."""

    def __init__(self, num_usable_blocks: int, block_size: int) -> None:
        self.num_free = num_usable_blocks
        self.block_size = block_size

    def find_cached_tokens(self, sequence: Sequence) -> int:  # noqa: ARG002
        """Nothing is cached."""
        return 0

    def num_needed(self, sequence: Sequence, num_tokens: int, num_cached_tokens: int) -> int:  # noqa: ARG002
        """Every block is a new one."""
        return -(-num_tokens // self.block_size)

    def admit(self, sequence: Sequence, num_tokens: int, num_cached_tokens: int) -> None:  # noqa: ARG002
        """Take the blocks."""
        self.num_free -= -(-num_tokens // self.block_size)

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Take the blocks beyond those of the computed tokens."""
        self.num_free -= -(-num_tokens // self.block_size) + (-sequence.num_computed_tokens // self.block_size)

    def extend_by_one(self, sequences: Iterable[Sequence]) -> None:
        """Take one block for each."""
        self.num_free -= len(sequences)  # type: ignore[arg-type]  # always a sized collection; counting would cost

    def release(self, sequence: Sequence, num_tokens: int, num_known_tokens: int) -> None:  # noqa: ARG002
        """Give the blocks back."""
        self.num_free += -(-num_tokens // self.block_size)


class PrefixCachingBlockPool:
    """vLLM's block pool with prefix caching (`v1/core/block_pool.py`), block by block, in arrays.

    Every full block of a request has a key; equal keys mean equal contents from the start of the prompt on. A free
    block keeps its contents until it is handed out again: first those that no prefix can hit, then the least recently
    used. A sequence gives its blocks back last one first, so a prefix outlives its continuations.
    """

    def __init__(self, num_usable_blocks: int, block_size: int, num_keys: int, *, reuse_unhashed_first: bool) -> None:
        self.num_free = num_usable_blocks
        self.block_size = block_size
        self._reuse_unhashed_first = reuse_unhashed_first
        self._block_of_key = np.full(num_keys, -1, dtype=np.int32)
        self._key_of_block = np.full(num_usable_blocks, -1, dtype=np.int64)
        self._num_refs = np.zeros(num_usable_blocks, dtype=np.int32)
        self._copies: dict[int, list[int]] = {}
        """Further blocks with the contents of a key that has a block already, in order of arrival."""
        self._queue = _FreeQueue(num_usable_blocks)

    def find_cached_tokens(self, sequence: Sequence) -> int:
        """The longest run of cached blocks, short of the last token: that one must be computed to get an output."""
        keys = _keys(sequence)[: (sequence.num_tokens - 1) // self.block_size]
        misses = self._block_of_key[keys] < 0
        num_hits = int(misses.argmax()) if misses.any() else len(keys)
        return num_hits * self.block_size

    def num_needed(self, sequence: Sequence, num_tokens: int, num_cached_tokens: int) -> int:
        """New blocks, and the cached ones that nobody holds: they leave the free queue, too."""
        num_hits = num_cached_tokens // self.block_size
        hits = self._block_of_key[_keys(sequence)[:num_hits]]
        return -(-num_tokens // self.block_size) - num_hits + int(np.count_nonzero(self._num_refs[hits] == 0))

    def admit(self, sequence: Sequence, num_tokens: int, num_cached_tokens: int) -> None:
        """Hold the cached blocks, then take new ones."""
        hits = self._block_of_key[_keys(sequence)[: num_cached_tokens // self.block_size]]
        idle = hits[self._num_refs[hits] == 0]
        self._queue.remove(idle)
        self.num_free -= len(idle)
        self._num_refs[hits] += 1
        sequence.block_ids = hits.tolist()
        sequence.num_hashed_blocks = len(hits)
        self._grow(sequence, num_tokens)

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Take new blocks; those that the prompt fills can be hit at once."""
        self._grow(sequence, num_tokens)

    def extend_by_one(self, sequences: Iterable[Sequence]) -> None:
        """One new block for each, in the order of the running queue."""
        for sequence in sorted(sequences, key=_by_order):
            block = self._queue.pop_one()
            if self._key_of_block[block] >= 0:
                self._forget_one(block)
            self._num_refs[block] = 1
            self.num_free -= 1
            sequence.block_ids.append(block)

    def release(self, sequence: Sequence, num_tokens: int, num_known_tokens: int) -> None:  # noqa: ARG002
        """Give the blocks back, last one first; full blocks of known tokens keep their contents."""
        self._remember(sequence, num_known_tokens // self.block_size)
        blocks = np.array(sequence.block_ids[::-1], dtype=np.int32)
        sequence.block_ids = []
        sequence.num_hashed_blocks = 0
        self._num_refs[blocks] -= 1
        idle = blocks[self._num_refs[blocks] == 0]
        self.num_free += len(idle)
        if self._reuse_unhashed_first:
            hashed = self._key_of_block[idle] >= 0
            self._queue.prepend(idle[~hashed])
            self._queue.append(idle[hashed])
        else:
            self._queue.append(idle)

    def _grow(self, sequence: Sequence, num_tokens: int) -> None:
        num_new = -(-num_tokens // self.block_size) - len(sequence.block_ids)
        if num_new > 0:
            new = self._queue.pop(num_new)
            self._forget(new)
            self._num_refs[new] = 1
            self.num_free -= num_new
            sequence.block_ids.extend(new.tolist())
        self._remember(sequence, min(num_tokens, sequence.num_tokens) // self.block_size)

    def _remember(self, sequence: Sequence, num_full_blocks: int) -> None:
        """Enter the sequence's full blocks under their keys."""
        first = sequence.num_hashed_blocks
        if num_full_blocks <= first:
            return
        blocks = np.array(sequence.block_ids[first:num_full_blocks], dtype=np.int32)
        keys = _keys(sequence)[first:num_full_blocks]
        sequence.num_hashed_blocks = num_full_blocks
        self._key_of_block[blocks] = keys
        taken = self._block_of_key[keys] >= 0
        if taken.any():
            for key, block in zip(keys[taken].tolist(), blocks[taken].tolist(), strict=True):
                self._copies.setdefault(key, []).append(block)
            keys, blocks = keys[~taken], blocks[~taken]
        self._block_of_key[keys] = blocks

    def _forget(self, blocks: NDArray[Any]) -> None:
        """Drop the contents of blocks that are handed out again."""
        keys = self._key_of_block[blocks]
        hashed = keys >= 0
        blocks, keys = blocks[hashed], keys[hashed]
        self._key_of_block[blocks] = -1
        owns = self._block_of_key[keys] == blocks
        self._block_of_key[keys[owns]] = -1
        if self._copies:
            self._forget_copies(
                [(k, b) for k, b in zip(keys.tolist(), blocks.tolist(), strict=True) if k in self._copies]
            )

    def _forget_one(self, block: int) -> None:
        key = int(self._key_of_block[block])
        self._key_of_block[block] = -1
        if self._block_of_key[key] == block:
            self._block_of_key[key] = -1
        if key in self._copies:
            self._forget_copies([(key, block)])

    def _forget_copies(self, forgotten: list[tuple[int, int]]) -> None:
        """Of keys with several blocks these blocks are gone: if it was the first one, the next one answers."""
        for key, block in forgotten:
            if block in self._copies[key]:
                self._copies[key].remove(block)
        for key, _ in forgotten:
            copies = self._copies.get(key)
            if copies and self._block_of_key[key] < 0:
                self._block_of_key[key] = copies.pop(0)
            if copies is not None and not copies:
                del self._copies[key]


class _FreeQueue:
    """Free blocks in the order in which they are handed out, in segments; removal from the middle is lazy."""

    def __init__(self, num_blocks: int) -> None:
        self._head: list[int] = []
        """The first segment, last block first."""
        self._head_stamp = 0
        self._segments: deque[tuple[NDArray[Any], int]] = deque()
        self._stamps = np.zeros(num_blocks, dtype=np.int64)
        """The stamp of the segment in which a block waits; 0 when it is in use."""
        self._last_stamp = 0
        for start in range(0, num_blocks, _SEGMENT):
            self.append(np.arange(start, min(start + _SEGMENT, num_blocks)))

    def append(self, blocks: NDArray[Any]) -> None:
        """Hand these out last."""
        if len(blocks):
            self._segments.append(self._stamped(blocks))

    def prepend(self, blocks: NDArray[Any]) -> None:
        """Hand these out next."""
        if len(blocks):
            if self._head:
                self._segments.appendleft((np.array(self._head[::-1]), self._head_stamp))
            _, self._head_stamp = self._stamped(blocks)
            self._head = blocks[::-1].tolist()

    def remove(self, blocks: NDArray[Any]) -> None:
        """Take blocks out of the middle."""
        self._stamps[blocks] = 0

    def pop_one(self) -> int:
        """Hand out one block; the caller has checked that one is free."""
        stamps = self._stamps
        while True:
            if not self._head:
                blocks, self._head_stamp = self._segments.popleft()
                self._head = blocks[::-1].tolist()
            block = self._head.pop()
            if stamps[block] == self._head_stamp:
                stamps[block] = 0
                return block

    def pop(self, num: int) -> NDArray[Any]:
        """Hand out `num` blocks; the caller has checked that so many are free."""
        taken = []
        if self._head:
            self._segments.appendleft((np.array(self._head[::-1]), self._head_stamp))
            self._head = []
        while num:
            blocks, stamp = self._segments.popleft()
            waiting = np.flatnonzero(self._stamps[blocks] == stamp)
            if len(waiting) > num:
                end = int(waiting[num - 1]) + 1
                self._segments.appendleft((blocks[end:], stamp))
                waiting = waiting[:num]
            taken.append(blocks[waiting])
            num -= len(waiting)
        popped = taken[0] if len(taken) == 1 else np.concatenate(taken)
        self._stamps[popped] = 0
        return popped

    def _stamped(self, blocks: NDArray[Any]) -> tuple[NDArray[Any], int]:
        self._last_stamp += 1
        self._stamps[blocks] = self._last_stamp
        return blocks, self._last_stamp


def _keys(sequence: Sequence) -> NDArray[Any]:
    assert sequence.block_keys is not None
    return sequence.block_keys


_by_order = attrgetter("order")
