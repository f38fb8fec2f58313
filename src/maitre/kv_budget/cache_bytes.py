"""Bytes on one GPU: a token in one attention layer, a state in one recurrent layer, under the data types asked for."""

from __future__ import annotations

from maitre.errors import UnsupportedError, UsageError
from maitre.kv_budget.weights import kv_heads_per_gpu
from maitre.models import AttentionGeometry, AttentionLayers, StateLayers

_KV_DTYPE_BYTES = {"float16": 2, "half": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "float32": 4}
_PACKED_KV_DTYPES = ("fp8_inc", "fp8_ds_mla", "turboquant", "ultraquant", "int4_", "int8_", "nvfp4", "fp8_per_token")
_DTYPE_BYTES = {"half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}
"""vLLM `config/cache.py`, CacheDType, and `config/model.py`, ModelDType."""

_PACKED_LATENT_BYTES = {576: 656}
"""fp8_ds_mla: 512 numbers of one byte, four float32 scales, and 64 rotary numbers in half precision."""

_INDEX_QUANT_BLOCK = 128
"""Numbers of a sparse index's key that share one float32 scale (vLLM `models/deepseek_v2.py`, `Indexer`)."""


def dtype_bytes(model: AttentionGeometry, dtype: str) -> int:
    """Bytes of a weight or activation under `--dtype`.

    Raises:
        UsageError: no such data type.
    """
    if dtype == "auto":
        return model.dtype_bytes
    if dtype not in _DTYPE_BYTES:
        raise UsageError(f"dtype '{dtype}' is not known", f"choose auto, {', '.join(_DTYPE_BYTES)}")
    return _DTYPE_BYTES[dtype]


def token_bytes(layers: AttentionLayers, kv_cache_dtype: str, tensor_parallel_size: int, model_item: int) -> int:
    """Bytes of one token in one of these layers.

    vLLM 0.26.0, `v1/kv_cache_interface.py`, `AttentionSpec`; a latent is not shared out over the GPUs.

    Args:
        layers: the attention layers.
        kv_cache_dtype: auto, or vLLM's name of a data type.
        tensor_parallel_size: GPUs that share the model.
        model_item: bytes of one number of the model's own data type.

    Raises:
        UsageError: no such data type.
        UnsupportedError: a data type that packs the cache in a way that is not computed.
    """
    if layers.is_latent:
        index = layers.index_head_dim + layers.index_head_dim // _INDEX_QUANT_BLOCK * 4
        return _latent_bytes(layers, kv_cache_dtype, model_item) + index
    item = model_item if kv_cache_dtype == "auto" else _kv_dtype_bytes(kv_cache_dtype)
    heads = kv_heads_per_gpu(layers.num_key_value_heads, tensor_parallel_size)
    return heads * (layers.head_dim + layers.value_head_dim) * item


def _latent_bytes(layers: AttentionLayers, kv_cache_dtype: str, model_item: int) -> int:
    """Sparse attention packs its latent whenever the cache is fp8 (vLLM `mla/flashmla_sparse.py`)."""
    packed = kv_cache_dtype == "fp8_ds_mla" or (layers.index_head_dim > 0 and kv_cache_dtype.startswith("fp8"))
    if packed and layers.head_dim in _PACKED_LATENT_BYTES:
        return _PACKED_LATENT_BYTES[layers.head_dim]
    return layers.head_dim * (model_item if kv_cache_dtype == "auto" else _kv_dtype_bytes(kv_cache_dtype))


def state_bytes(
    states: StateLayers, tensor_parallel_size: int, model_item: int, num_speculative_tokens: int = 0
) -> int:
    """Bytes of one sequence's state in one of these layers.

    vLLM 0.32.0, `model_executor/layers/mamba/mamba_utils.py`: the state does not follow `--kv-cache-dtype`.

    Raises:
        UsageError: the heads cannot be shared out, or no such data type.
    """
    tp, groups = tensor_parallel_size, states.conv_groups
    if groups and groups % tp:
        groups = tp
    channels = states.conv_channels + groups * states.conv_group_width
    if channels % tp or states.num_heads % tp:
        raise UsageError(
            f"{states.num_heads or channels} heads of recurrent state cannot be shared out evenly over {tp} GPUs",
            "choose a --tensor-parallel-size that divides them",
        )
    steps = states.conv_steps + num_speculative_tokens * states.conv_keeps_drafts
    if states.state_dtype and states.state_dtype not in _DTYPE_BYTES:
        raise UsageError(
            f"mamba_ssm_cache_dtype '{states.state_dtype}' is not known", "choose auto, float32 or bfloat16"
        )
    item = _DTYPE_BYTES[states.state_dtype] if states.state_dtype else model_item
    return channels // tp * steps * model_item + states.num_heads // tp * states.head_size * item


def _kv_dtype_bytes(kv_cache_dtype: str) -> int:
    if kv_cache_dtype in _KV_DTYPE_BYTES:
        return _KV_DTYPE_BYTES[kv_cache_dtype]
    if kv_cache_dtype.startswith(_PACKED_KV_DTYPES):
        raise UnsupportedError(
            f"kv_cache_dtype {kv_cache_dtype} packs the cache in a way that is not covered yet",
            "give the KV pool instead of the model: --blocks N --block-size B",
        )
    raise UsageError(f"kv_cache_dtype '{kv_cache_dtype}' is not known", f"choose auto, {', '.join(_KV_DTYPE_BYTES)}")
