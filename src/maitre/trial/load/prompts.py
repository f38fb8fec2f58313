"""Prompts with the lengths and the shared prefixes of a workload, and content that no earlier run has sent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maitre.errors import UsageError
from maitre.records import Workload

LOW_TOKENS = 1_000
"""Token ids left out at the low end: Mistral's Tekken tokenizer keeps its first 1,000 ids for control tokens."""
HIGH_TOKENS = 4_096
"""Token ids left out at the high end: special and padding ids of Llama 4 start 2,048 below its vocabulary's end, those
of GPT-OSS 1,090, of DeepSeek-V3 1,280, of Qwen2.5 421."""

_ROOT = -1
"""What no chunk comes before."""


def make_prompts(workload: Workload, vocab_size: int, seed: int, run: int) -> list[list[int]]:
    """Random prompts: the same for the same seed and run, other content for any other run.

    Two prompts have the same tokens as far as their prefix hashes agree (as far as the shorter one goes) and differ in
    the very next token, unless more prompts part there than there are tokens to choose from.

    Args:
        workload: lengths and, where known, prefix hashes.
        vocab_size: tokens of the model's vocabulary; `LOW_TOKENS` and `HIGH_TOKENS` of them, but never more than a
            quarter each, are not used, because special tokens lie there.
        seed: ≥ 0.
        run: number of the run, ≥ 0.

    Returns:
        One list of token ids a request.

    Raises:
        UsageError: the vocabulary is empty.
    """
    if vocab_size < 1:
        raise UsageError(f"a vocabulary of {vocab_size} tokens makes no prompts", "give the model's vocab_size")
    generator = np.random.default_rng((seed, run))
    chunks = _Chunks(workload)
    tokens = _draw(generator, token_range(vocab_size), chunks)
    return [np.concatenate([tokens[first:last] for first, last in spans]).tolist() for spans in chunks.spans]


def token_range(vocab_size: int) -> range:
    """The token ids that prompts are made of."""
    quarter = vocab_size // 4
    return range(min(LOW_TOKENS, quarter), vocab_size - min(HIGH_TOKENS, quarter))


class _Chunks:
    """Where the tokens of every prompt lie in one flat array; prompts with a common prefix point to the same part.

    A node is a chunk behind its parent, known by its hash; the part of a prompt behind its last hash is a node of its
    own. `rank` counts the children of a parent, so that each can begin with another token.
    """

    def __init__(self, workload: Workload) -> None:
        self.starts: list[int] = []
        """Of each node, in the flat array."""
        self.ranks: list[int] = []
        """Of each node among the children of its parent."""
        self.parents: list[int] = []
        self.num_tokens = 0
        self.spans: list[list[tuple[int, int]]] = []
        """First and last + 1 of each piece of each prompt."""
        self._nodes: dict[tuple[int, int], int] = {}
        self._num_children: dict[int, int] = {}
        size = workload.prefix_block_tokens or 1
        hashes = workload.prefix_hashes or ((),) * workload.num_requests
        for row, length in zip(hashes, workload.prompt_tokens.tolist(), strict=True):
            self.spans.append(self._place(row, length, size))

    def _place(self, hashes: tuple[int, ...], length: int, size: int) -> list[tuple[int, int]]:
        spans, parent = [], _ROOT
        num_hashed = min(len(hashes), -(-length // size))
        for position, prefix_hash in enumerate(hashes[:num_hashed]):
            node = self._nodes.get((parent, prefix_hash))
            if node is None:
                node = self._nodes[parent, prefix_hash] = self._add_node(parent, size)
            spans.append((self.starts[node], self.starts[node] + min(size, length - position * size)))
            parent = node
        if (rest := length - num_hashed * size) > 0:
            start = self.starts[self._add_node(parent, rest)]
            spans.append((start, start + rest))
        return spans

    def _add_node(self, parent: int, num_tokens: int) -> int:
        rank = self._num_children.get(parent, 0)
        self._num_children[parent] = rank + 1
        self.starts.append(self.num_tokens)
        self.ranks.append(rank)
        self.parents.append(parent)
        self.num_tokens += num_tokens
        return len(self.starts) - 1


def _draw(generator: np.random.Generator, allowed: range, chunks: _Chunks) -> NDArray[np.int64]:
    """All chunks' tokens; those that begin the children of one parent differ from each other."""
    tokens = generator.integers(allowed.start, allowed.stop, chunks.num_tokens)
    offsets = generator.integers(0, len(allowed), len(chunks.starts) + 1)[np.array(chunks.parents) + 1]
    tokens[chunks.starts] = allowed.start + (offsets + chunks.ranks) % len(allowed)
    return tokens
