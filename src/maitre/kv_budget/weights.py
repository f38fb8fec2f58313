"""The weights on one GPU: how tensor parallelism splits them, and what PyTorch allocates for them."""

from __future__ import annotations

from maitre.errors import UsageError
from maitre.models import AttentionGeometry, Checkpoint, Model
from maitre.units import MIB

VOCAB_PADDING = 64
"""The vocabulary is padded to a multiple of this (vLLM `model_executor/layers/vocab_parallel_embedding.py`)."""


def kv_heads_per_gpu(num_key_value_heads: int, tensor_parallel_size: int) -> int:
    """KV heads that one GPU keeps: a share of them, or a copy of one (vLLM `config/model.py`, `get_num_kv_heads`)."""
    return max(1, num_key_value_heads // tensor_parallel_size)


def divides_evenly(model: AttentionGeometry, tensor_parallel_size: int) -> bool:
    """Whether heads and MLP can be shared out over so many GPUs.

    vLLM 0.26.0: `config/model.py`, `verify_with_parallel_config`, and the assertions of `models/llama.py`.
    """
    tp, kv = tensor_parallel_size, model.num_key_value_heads
    heads = model.num_attention_heads % tp == 0 and (kv % tp == 0 or tp % kv == 0)
    return heads and not (isinstance(model, Checkpoint) and model.intermediate_size % tp)


def check_tensor_parallel(model: AttentionGeometry, tensor_parallel_size: int) -> None:
    """Refuse a split that vLLM refuses.

    Raises:
        UsageError: heads or MLP cannot be shared out evenly.
    """
    if divides_evenly(model, tensor_parallel_size):
        return
    fits = [n for n in range(1, model.num_attention_heads + 1) if divides_evenly(model, n)]
    raise UsageError(
        f"{model.name} cannot be shared out evenly over {tensor_parallel_size} GPUs: it has "
        f"{model.num_attention_heads} attention heads and {model.num_key_value_heads} key-value heads",
        f"--tensor-parallel-size must be one of {', '.join(map(str, fits))}",
    )


def matrix_shapes(model: Model, tensor_parallel_size: int) -> list[tuple[int, int]]:
    """The matrices that one GPU holds, as (number of such matrices, weights in each)."""
    tp, hidden, layers = tensor_parallel_size, model.hidden_size, model.num_hidden_layers
    query = model.query_size // tp
    key_value = kv_heads_per_gpu(model.num_key_value_heads, tp) * model.head_dim
    vocabulary = -(-model.vocab_size // (VOCAB_PADDING * tp)) * VOCAB_PADDING
    return [
        (layers, hidden * (query + 2 * key_value)),
        (layers, hidden * query),
        (layers, hidden * 2 * model.intermediate_size // tp),
        (layers, hidden * model.intermediate_size // tp),
        (1 if model.tie_word_embeddings else 2, hidden * vocabulary),
    ]


def vector_parameters(model: Model, tensor_parallel_size: int) -> int:
    """Norms and biases that one GPU holds: norms and output biases are copied, the others shared out."""
    tp, hidden = tensor_parallel_size, model.hidden_size
    key_value = kv_heads_per_gpu(model.num_key_value_heads, tp) * model.head_dim
    layer = 2 * hidden + 2 * model.head_dim * model.qk_norm
    layer += (model.query_size // tp + 2 * key_value) * model.qkv_bias + hidden * model.output_bias
    layer += (2 * model.intermediate_size // tp + hidden) * model.mlp_bias
    return model.num_hidden_layers * layer + hidden


def weight_bytes_per_gpu(
    model: Checkpoint, dtype_bytes: int, tensor_parallel_size: int, *, large_blocks_whole: bool = True
) -> int:
    """Bytes that the weights occupy on one GPU, PyTorch's rounding included.

    A quantized checkpoint is shared out like its unquantized parameters; one whose parameters are not counted, evenly.

    Args:
        model: the model.
        dtype_bytes: bytes of a weight.
        tensor_parallel_size: GPUs that share the model.
        large_blocks_whole: see `maitre.vllm.keeps_large_blocks_whole`.
    """
    if not isinstance(model, Model):
        return -(-model.weight_bytes // tensor_parallel_size)
    matrices = matrix_shapes(model, tensor_parallel_size)
    vectors = vector_parameters(model, tensor_parallel_size)
    if model.quantization:
        parameters = sum(number * size for number, size in matrices) + vectors
        return round(model.weight_bytes * parameters / model.num_parameters)
    booked = (n * allocated_bytes(size * dtype_bytes, large_blocks_whole=large_blocks_whole) for n, size in matrices)
    return sum(booked) + vectors * dtype_bytes


def rotary_bytes(model: AttentionGeometry, dtype_bytes: int) -> int:
    """The table of rotary angles that all layers share: a sine and a cosine for each position and half a head.

    vLLM 0.26.0, `model_executor/layers/rotary_embedding/base.py`, `_compute_cos_sin_cache`.
    """
    return model.max_position_embeddings * model.head_dim * dtype_bytes


def allocated_bytes(num_bytes: int, *, large_blocks_whole: bool = True) -> int:
    """What PyTorch's caching allocator books for one tensor.

    From 10 MiB on it takes a segment of whole 2 MiB. It gives back a remainder above 1 MiB, unless the block is larger
    than max_split_size, 20 MiB here (`c10/cuda/CUDACachingAllocator.cpp`, `get_allocation_size`, `should_split`).
    """
    if num_bytes < 10 * MIB:
        return num_bytes
    segment = -(-num_bytes // (2 * MIB)) * 2 * MIB
    whole = large_blocks_whole and num_bytes >= 20 * MIB
    return segment if whole or segment - num_bytes <= MIB else num_bytes
