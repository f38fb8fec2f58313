"""Names for the contents of KV blocks: equal keys mean equal tokens from the start of the prompt on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maitre.records import Workload


def assign_block_keys(workload: Workload, block_size: int) -> list[NDArray[np.int64]]:
    """Keys of every full block that a request can fill, prompt and output.

    A block inside the shared prompt is named by the prefix hash at its last token; generated blocks, and prompts
    without hashes, are unlike any other. (Outputs that come back in a later prompt are not recognised: traces of
    prefix hashes do not say so.)

    Returns:
        One array a request, of ⌊(prompt + output) / block_size⌋ keys, numbered from 0.
    """
    if workload.prefix_hashes is None:
        num_blocks = (workload.prompt_tokens + workload.output_tokens) // block_size
        ends = np.cumsum(num_blocks)
        return [np.arange(end - num, end) for num, end in zip(num_blocks.tolist(), ends.tolist(), strict=True)]
    tree = _PrefixTree(workload.prefix_block_tokens or block_size, block_size)
    return [
        tree.assign(hashes, prompt // block_size, (prompt + output) // block_size)
        for hashes, prompt, output in zip(
            workload.prefix_hashes, workload.prompt_tokens.tolist(), workload.output_tokens.tolist(), strict=True
        )
    ]


class _PrefixTree:
    """Prefixes by their hashes: a node is a chunk behind its parent. A prompt that ends inside shares what it fills."""

    def __init__(self, chunk_tokens: int, block_size: int) -> None:
        self._chunk_tokens = chunk_tokens
        self._block_size = block_size
        self._nodes: dict[tuple[int, int], int] = {}
        """Number of the node by parent and hash."""
        self._first_keys: list[int] = []
        """Of each node."""
        self._num_keys = 0

    def assign(self, hashes: tuple[int, ...], num_prompt_blocks: int, num_blocks: int) -> NDArray[np.int64]:
        """Keys of a request's full blocks; those behind the hashed prompt are new."""
        pieces = []
        first, node = 0, -1
        for position, prefix_hash in enumerate(hashes):
            if first == num_prompt_blocks:
                break
            end = (position + 1) * self._chunk_tokens // self._block_size
            node = self._nodes.setdefault((node, prefix_hash), len(self._nodes))
            if node == len(self._first_keys):
                self._first_keys.append(self._take_keys(end - first))
            last = min(end, num_prompt_blocks)
            pieces.append(np.arange(self._first_keys[node], self._first_keys[node] + last - first))
            first = last
        start = self._take_keys(num_blocks - first)
        pieces.append(np.arange(start, self._num_keys))
        return np.concatenate(pieces)

    def _take_keys(self, num: int) -> int:
        """The first of `num` new keys."""
        self._num_keys += num
        return self._num_keys - num
