"""The activation peak of vLLM's profile run, which is what a larger token budget takes from the KV pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitre.models import Model


def activation_bytes(
    model: Model, max_num_seqs: int, max_num_batched_tokens: int, tensor_parallel_size: int, dtype_bytes: int
) -> tuple[int, str]:
    """The peak in bytes on one GPU, and the formula that gives it.

    vLLM profiles one forward pass of max_num_batched_tokens tokens, then the sampler on one row for each of
    min(max_num_seqs, max_num_batched_tokens) sequences (`v1/worker/gpu/model_runner.py`, `profile_run`).
    """
    layers, layers_formula = forward_bytes(model, max_num_batched_tokens, tensor_parallel_size, dtype_bytes)
    rows = min(max_num_seqs, max_num_batched_tokens)
    head, head_formula = sampler_bytes(model, rows, max_num_batched_tokens, dtype_bytes)
    return (layers, layers_formula) if layers >= head else (head, head_formula)


def forward_bytes(model: Model, num_tokens: int, tensor_parallel_size: int, dtype_bytes: int) -> tuple[int, str]:
    """The layers' peak: gate, up and their product, beside the residual and the attention's output.

    Measured: an RTX 4090 loses 3,744 tokens of Qwen3-8B's pool between 2,048 and 8,192 tokens, 89,856 B a token, and
    this gives 90,112 (vLLM PR #48322).
    """
    shared = 3 * model.intermediate_size // tensor_parallel_size
    num_bytes = num_tokens * (shared + 2 * model.hidden_size) * dtype_bytes
    return num_bytes, f"{num_tokens:,} tokens × (3·intermediate/TP + 2·hidden) × {dtype_bytes} B"


def sampler_bytes(model: Model, num_rows: int, num_tokens: int, dtype_bytes: int) -> tuple[int, str]:
    """The sampler's peak: logits of each sequence, beside the last hidden states."""
    num_bytes = num_tokens * model.hidden_size * dtype_bytes + num_rows * model.vocab_size * dtype_bytes
    return num_bytes, f"{num_tokens:,} tokens × hidden + {num_rows:,} sequences × vocabulary, × {dtype_bytes} B"
