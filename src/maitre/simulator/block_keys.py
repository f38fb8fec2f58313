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
    return _assign_shared_keys(workload, workload.prefix_hashes, block_size)


def _assign_shared_keys(
    workload: Workload, prefix_hashes: tuple[tuple[int, ...], ...], block_size: int
) -> list[NDArray[np.int64]]:
    chunk = workload.prefix_block_tokens or block_size
    nodes: dict[tuple[int, int], int] = {}
    """The tree of prefixes: a parent and a hash make a node. A prompt that ends inside it shares the blocks it fills."""
    first_keys: list[int] = []
    num_keys = 0
    keys = []
    for hashes, prompt, output in zip(
        prefix_hashes, workload.prompt_tokens.tolist(), workload.output_tokens.tolist(), strict=True
    ):
        pieces = []
        num_prompt_blocks = prompt // block_size
        first, node = 0, -1
        for position, prefix_hash in enumerate(hashes):
            if first == num_prompt_blocks:
                break
            end = (position + 1) * chunk // block_size
            node = nodes.setdefault((node, prefix_hash), len(nodes))
            if node == len(first_keys):
                first_keys.append(num_keys)
                num_keys += end - first
            last = min(end, num_prompt_blocks)
            pieces.append(np.arange(first_keys[node], first_keys[node] + last - first))
            first = last
        num_own = (prompt + output) // block_size - first
        pieces.append(np.arange(num_keys, num_keys + num_own))
        num_keys += num_own
        keys.append(np.concatenate(pieces))
    return keys
