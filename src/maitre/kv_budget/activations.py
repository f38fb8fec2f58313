"""The activation peak of vLLM's profile run, which is what a larger token budget takes from the KV pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitre.models import Model
    from maitre.records import Cell


def activation_bytes(
    model: Model,
    cell: Cell,
    *,
    tensor_parallel_size: int = 1,
    dtype_bytes: int = 2,
    v2_runner: bool = True,
) -> tuple[int, str]:
    """The peak in bytes on one GPU, and the formula that gives it.

    vLLM profiles one forward pass of max_num_batched_tokens tokens, then the sampler on one row for each of
    min(max_num_seqs, max_num_batched_tokens) sequences (`v1/worker/gpu/model_runner.py`, `profile_run`).

    Args:
        model: the model.
        cell: the two dials.
        tensor_parallel_size: GPUs that share the model.
        dtype_bytes: bytes of an activation.
        v2_runner: Model Runner V2 samples (`maitre.vllm.uses_v2_model_runner`).
    """
    tokens = cell.max_num_batched_tokens
    layers = forward_bytes(model, tokens, tensor_parallel_size, dtype_bytes)
    sampler = sampler_bytes(model, min(cell.max_num_seqs, tokens), tokens, dtype_bytes, v2_runner=v2_runner)
    return max(layers, sampler, key=lambda part: part[0])


def forward_bytes(model: Model, num_tokens: int, tensor_parallel_size: int, dtype_bytes: int) -> tuple[int, str]:
    """The layers' peak: gate, up and their product, beside the residual and the attention's output.

    Measured: an RTX 4090 loses 3,744 tokens of Qwen3-8B's pool between 2,048 and 8,192 tokens, 89,856 B a token, and
    this gives 90,112 (vLLM PR #48322).
    """
    shared = 3 * model.intermediate_size // tensor_parallel_size
    num_bytes = num_tokens * (shared + 2 * model.hidden_size) * dtype_bytes
    return num_bytes, f"{num_tokens:,} tokens × (3·intermediate/TP + 2·hidden) × {dtype_bytes} B"


def sampler_bytes(
    model: Model, num_rows: int, num_tokens: int, dtype_bytes: int, *, v2_runner: bool = True
) -> tuple[int, str]:
    """The sampler's peak: the logits of each sequence, beside the last hidden states.

    Runner V2 samples in place. Runner V1 adds three float32 copies: logits, probabilities and exponential noise
    (`v1/sample/sampler.py` and `v1/sample/ops/topk_topp_sampler.py` of 0.19.1 and 0.24.0).
    """
    logit = dtype_bytes if v2_runner else dtype_bytes + 3 * 4
    num_bytes = num_tokens * model.hidden_size * dtype_bytes + num_rows * model.vocab_size * logit
    return num_bytes, f"{num_tokens:,} tokens × hidden × {dtype_bytes} B + {num_rows:,} rows × vocabulary × {logit} B"
