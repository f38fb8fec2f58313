"""How many sequences a KV pool really holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from maitre.errors import DoesNotFitError, InputError
from maitre.kv_budget.pages import Counts, LayerPages
from maitre.kv_budget.pool import GroupedKvBudget
from maitre.records import KvBudget, Record


class SequencesThatFit(Record):
    """Sequences that run at once without a preemption, under two readings of their size."""

    mean_footprint: float
    """At the footprint that a running sequence has on average over its life."""
    full_length: float
    """If all of them stand at their last token."""


def max_seqs_of_length(budget: KvBudget, num_tokens: int) -> float:
    """Sequences of `num_tokens` tokens that the pool holds; at max_model_len, vLLM's "Maximum concurrency"."""
    usable = budget.num_gpu_blocks - 1
    if isinstance(budget, GroupedKvBudget):
        return usable / budget.layout.blocks_reserved(num_tokens, budget.in_flight_tokens)
    return usable / -(-num_tokens // budget.block_size)


def max_seqs(budget: KvBudget, prompt_tokens: NDArray[Any], output_tokens: NDArray[Any]) -> SequencesThatFit:
    """How many sequences of these lengths the pool holds while they decode.

    A sequence with p prompt and o output tokens computes its token number p + j at its step j = 0 … o − 1. A plain
    model holds ⌈(p + j) / block_size⌉ blocks then, about p + o/2 tokens on average; a window or a state holds its
    fixed part. A long sequence stays longer, so the mean over running sequences weighs each request by its o steps
    (Little's law).

    Args:
        budget: the pool.
        prompt_tokens: shape (n,), each at least 1.
        output_tokens: shape (n,), each at least 1.

    Raises:
        InputError: no request, or one without tokens.
        DoesNotFitError: one request is longer than the pool.
    """
    prompt, output = np.asarray(prompt_tokens, dtype=np.int64), np.asarray(output_tokens, dtype=np.int64)
    if prompt.size == 0 or prompt.size != output.size or prompt.min() < 1 or output.min() < 1:
        raise InputError("prompt and output lengths of at least 1 token were expected, one pair a request", "")
    usable, last = budget.num_gpu_blocks - 1, prompt + output - 1
    at_last, over_life = _blocks(budget, prompt, last)
    if (largest := int(at_last.max())) > usable:
        tokens = int((prompt + output).max())
        raise DoesNotFitError(
            f"a request of {tokens:,} tokens needs {largest:,} blocks, the pool has {usable:,}",
            "give the pool more memory, or cap the lengths with --max-model-len",
        )
    return SequencesThatFit(
        mean_footprint=usable * float(output.sum()) / float(over_life.sum()),
        full_length=usable * float(output.sum()) / float((output * at_last).sum()),
    )


def _blocks(budget: KvBudget, first: Counts, last: Counts) -> tuple[Counts, Counts]:
    """Blocks at the last token, and their sum over the tokens `first` … `last`."""
    if isinstance(budget, GroupedKvBudget):
        return budget.layout.blocks_held(last), budget.layout.blocks_held_between(first, last)
    plain = LayerPages(keeps="all", num_layers=1, token_bytes=0, page_bytes=0, block_size=budget.block_size)
    return plain.held(last), plain.held_up_to(last) - plain.held_up_to(first - 1)
