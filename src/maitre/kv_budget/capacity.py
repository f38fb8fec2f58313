"""How many sequences a KV pool really holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from maitre.errors import DoesNotFitError, InputError
from maitre.records import KvBudget, Record


class SequencesThatFit(Record):
    """Sequences that run at once without a preemption, under two readings of their size."""

    mean_footprint: float
    """At the footprint that a running sequence has on average over its life."""
    full_length: float
    """If all of them stand at their last token."""


def max_seqs_of_length(budget: KvBudget, num_tokens: int) -> float:
    """Sequences of `num_tokens` tokens that the pool holds; at max_model_len, vLLM's "Maximum concurrency"."""
    return (budget.num_gpu_blocks - 1) / -(-num_tokens // budget.block_size)


def max_seqs(budget: KvBudget, prompt_tokens: NDArray[Any], output_tokens: NDArray[Any]) -> SequencesThatFit:
    """How many sequences of these lengths the pool holds.

    A sequence with p prompt and o output tokens holds ⌈(p + j) / block_size⌉ blocks at its step j = 0 … o − 1, about
    p + o/2 tokens on average. A long sequence stays longer, so the mean over running sequences weighs each request by
    its o steps (Little's law).

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
    size, usable = budget.block_size, budget.num_gpu_blocks - 1
    last = prompt + output - 1
    if (longest := int(-(-last // size).max())) > usable:
        tokens = int((prompt + output).max())
        raise DoesNotFitError(
            f"a request of {tokens:,} tokens needs {longest:,} blocks, the pool has {usable:,}",
            "give the pool more memory, or cap the lengths with --max-model-len",
        )
    steps = _blocks_up_to(last, size) - _blocks_up_to(prompt - 1, size)
    return SequencesThatFit(
        mean_footprint=usable * float(output.sum()) / float(steps.sum()),
        full_length=usable * float(output.sum()) / float((output * -(-last // size)).sum()),
    )


def _blocks_up_to(num_tokens: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Sum of ⌈k / block_size⌉ for k = 1 … num_tokens."""
    full = num_tokens // block_size
    whole: NDArray[np.int64] = block_size * full * (full + 1) // 2 + (num_tokens % block_size) * (full + 1)
    return whole
