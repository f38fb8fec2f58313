"""From a model, a GPU and a server's settings to the KV pool, part by part."""

from __future__ import annotations

import math
from collections.abc import Iterator

from maitre.errors import DoesNotFitError, UnsupportedError, UsageError
from maitre.gpus import Gpu
from maitre.kv_budget.activations import ProfileRun, activation_bytes
from maitre.kv_budget.weights import (
    check_tensor_parallel,
    divides_evenly,
    kv_heads_per_gpu,
    rotary_bytes,
    weight_bytes_per_gpu,
)
from maitre.models import AttentionGeometry, Model
from maitre.records import KvBudget, MemoryPart, ServerConfig
from maitre.units import GIB, MIB, format_bytes
from maitre.vllm import (
    check_server,
    keeps_large_blocks_whole,
    num_cuda_graphs,
    sampler_bytes_per_logit,
    subtracts_cuda_graphs,
)

NON_TORCH_BYTES = 231 * MIB
"""Kernels and handles outside PyTorch that are loaded after vLLM's first reading (an H200, vLLM 0.26.0, twelve starts
of four models: 0.22 GiB each). CUDA's context and NCCL's buffers come before it, so they are not in the budget
(`v1/worker/gpu_worker.py`, `init_device`)."""

GRAPH_BYTES_PER_LAYER = round(0.22 * MIB)
"""One CUDA graph of one layer: 0.18 to 0.32 MiB in nine starts on an H200."""

_KV_DTYPE_BYTES = {"float16": 2, "half": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "float32": 4}
_PACKED_KV_DTYPES = ("fp8_inc", "fp8_ds_mla", "turboquant", "int4_", "int8_", "nvfp4", "fp8_per_token")
_DTYPE_BYTES = {"half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}
"""vLLM `config/cache.py`, CacheDType, and `config/model.py`, ModelDType."""


def kv_bytes_per_token(model: AttentionGeometry, kv_cache_dtype: str, tensor_parallel_size: int, dtype: str) -> int:
    """Bytes of KV cache that one more token adds on one GPU: key and value, for every layer and KV head.

    vLLM 0.26.0, `v1/kv_cache_interface.py`, `AttentionSpec`.

    Raises:
        UsageError: the heads cannot be shared out, or no such data type.
        UnsupportedError: a data type that packs the cache.
    """
    check_tensor_parallel(model, tensor_parallel_size)
    heads = kv_heads_per_gpu(model.num_key_value_heads, tensor_parallel_size)
    item = dtype_bytes(model, dtype) if kv_cache_dtype == "auto" else _kv_dtype_bytes(kv_cache_dtype)
    return 2 * model.num_hidden_layers * heads * model.head_dim * item


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


def estimate_kv_budget(model: Model, gpu: Gpu, server: ServerConfig, *, compiles: bool = True) -> KvBudget:
    """The KV pool that vLLM will have with these settings, and what takes the rest of the GPU.

    Args:
        model: the model.
        gpu: one of the `tensor_parallel_size` equal GPUs.
        server: vLLM's settings.
        compiles: the first start of this shape, which has the smaller pool; False when the compiled graphs are cached.

    Raises:
        UsageError: settings that vLLM refuses.
        DoesNotFitError: nothing is left for the pool, or one request of max_model_len is larger than it.
    """
    check_server(server, model.max_position_embeddings)
    per_token = kv_bytes_per_token(model, server.kv_cache_dtype, server.tensor_parallel_size, server.dtype)
    block_bytes = per_token * server.block_size
    parts = memory_parts(model, gpu, server, compiles=compiles)
    pool = parts[-1].num_bytes
    if pool < needed_bytes(model, server):
        raise DoesNotFitError(_shortage(model, gpu, server, pool), "; ".join(_remedies(model, gpu, server)))
    return KvBudget(
        kv_bytes_per_token=per_token,
        num_gpu_blocks=pool // block_bytes,
        block_size=server.block_size,
        parts=parts,
        source=f"{model.source} and {gpu.name} ({gpu.source}), vLLM {server.vllm_version}",
    )


def kv_budget_from_blocks(
    num_gpu_blocks: int,
    block_size: int,
    model: AttentionGeometry | None = None,
    *,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
    dtype: str = "auto",
) -> KvBudget:
    """The KV pool that a running vLLM reports (`vllm:cache_config_info`, or its start-up log).

    Args:
        num_gpu_blocks: as vLLM counts them, the null block included.
        block_size: tokens in a block.
        model: gives the bytes a token, where known, with the three settings below.
        kv_cache_dtype: of the cache.
        tensor_parallel_size: GPUs that share the model.
        dtype: of the weights.

    Raises:
        UsageError: fewer than two blocks, or a block without tokens.
    """
    if num_gpu_blocks < 2 or block_size < 1:
        raise UsageError(
            f"{num_gpu_blocks} blocks of {block_size} tokens make no KV pool",
            "take num_gpu_blocks and block_size from vLLM's log or its vllm:cache_config_info metric",
        )
    return KvBudget(
        kv_bytes_per_token=kv_bytes_per_token(model, kv_cache_dtype, tensor_parallel_size, dtype) if model else None,
        num_gpu_blocks=num_gpu_blocks,
        block_size=block_size,
        source=f"{num_gpu_blocks:,} blocks of {block_size} tokens, as given",
    )


def memory_parts(model: Model, gpu: Gpu, server: ServerConfig, *, compiles: bool = True) -> tuple[MemoryPart, ...]:
    """What fills one GPU, the KV pool last; the parts add up to the GPU's memory, the pool may be negative.

    vLLM 0.26.0, `v1/worker/gpu_worker.py`, `determine_available_memory`.
    """
    tp, item, version = server.tensor_parallel_size, dtype_bytes(model, server.dtype), server.vllm_version
    weights = weight_bytes_per_gpu(model, item, tp, large_blocks_whole=keeps_large_blocks_whole(version))
    peak, formula = activation_bytes(model, profile_run(model, server, compiles=compiles))
    graphs = model.num_hidden_layers * num_cuda_graphs(version, server.cell) * GRAPH_BYTES_PER_LAYER
    subtracted = subtracts_cuda_graphs(version, model.architecture)
    left = gpu.memory_bytes - math.ceil(gpu.memory_bytes * server.gpu_memory_utilization)
    others = f"1 − gpu_memory_utilization {server.gpu_memory_utilization}: CUDA's context"
    others += "" if subtracted else f", and about {format_bytes(graphs)} of CUDA graphs"
    parts = [
        MemoryPart(name="outside the budget", num_bytes=left, source=others),
        MemoryPart(name="weights", num_bytes=weights, source=model.weight_source + (f", over {tp} GPUs" * (tp > 1))),
        MemoryPart(name="rotary table", num_bytes=rotary_bytes(model, item), source=f"positions × head_dim × {item} B"),
        MemoryPart(name="activation peak", num_bytes=peak, source=formula),
        MemoryPart(name="outside PyTorch", num_bytes=NON_TORCH_BYTES, source="measured on an H200"),
    ]
    if subtracted:
        estimate = f"{num_cuda_graphs(version, server.cell)} graphs, measured on an H200 to ±45 %"
        parts.append(MemoryPart(name="CUDA graphs", num_bytes=graphs, source=estimate))
    pool = gpu.memory_bytes - sum(part.num_bytes for part in parts)
    return (*parts, MemoryPart(name="KV pool", num_bytes=pool, source="the rest"))


def profile_run(model: Model, server: ServerConfig, *, compiles: bool = True) -> ProfileRun:
    """The profile run that vLLM makes for these settings."""
    item = dtype_bytes(model, server.dtype)
    return ProfileRun(
        num_tokens=server.max_num_batched_tokens,
        num_rows=min(server.max_num_seqs, server.max_num_batched_tokens),
        tensor_parallel_size=server.tensor_parallel_size,
        dtype_bytes=item,
        bytes_per_logit=sampler_bytes_per_logit(server.vllm_version, model.architecture, item),
        compiles=compiles,
    )


def needed_bytes(model: AttentionGeometry, server: ServerConfig) -> int:
    """The smallest pool on one GPU that vLLM starts with: one request of max_model_len, and never under two blocks.

    vLLM 0.26.0, `v1/core/kv_cache_utils.py`, `_check_enough_kv_cache_memory`.
    """
    per_token = kv_bytes_per_token(model, server.kv_cache_dtype, server.tensor_parallel_size, server.dtype)
    return max(2, -(-server.max_model_len // server.block_size)) * per_token * server.block_size


def _kv_dtype_bytes(kv_cache_dtype: str) -> int:
    if kv_cache_dtype in _KV_DTYPE_BYTES:
        return _KV_DTYPE_BYTES[kv_cache_dtype]
    if kv_cache_dtype.startswith(_PACKED_KV_DTYPES):
        raise UnsupportedError(
            f"kv_cache_dtype {kv_cache_dtype} packs the cache in a way that is not covered yet",
            "give the KV pool instead of the model: --blocks N --block-size B",
        )
    raise UsageError(f"kv_cache_dtype '{kv_cache_dtype}' is not known", f"choose auto, {', '.join(_KV_DTYPE_BYTES)}")


def _shortage(model: Model, gpu: Gpu, server: ServerConfig, pool: int) -> str:
    needed = needed_bytes(model, server)
    short = f"{(needed - pool) / GIB:.2f} GiB short"
    if pool <= 0:
        return f"{model.name} leaves no room for a KV cache on {gpu.name}: {short} of one request of max_model_len"
    return (
        f"one request of max_model_len {server.max_model_len:,} needs {format_bytes(needed)} of KV cache, "
        f"{format_bytes(pool)} are left on {gpu.name}: {short}"
    )


def _remedies(model: Model, gpu: Gpu, server: ServerConfig) -> list[str]:
    """Up to three single changes that make it fit, the cheapest first."""
    fitting: dict[str, str] = {}
    for flag, value, changed in _changes(model, server):
        if flag not in fitting and memory_parts(model, gpu, changed)[-1].num_bytes >= needed_bytes(model, changed):
            fitting[flag] = f"--{flag.replace('_', '-')} {value}"
    return list(fitting.values())[:3] or [
        "no single flag makes it fit: take a smaller or a quantized model, or a larger GPU"
    ]


def _changes(model: Model, server: ServerConfig) -> Iterator[tuple[str, object, ServerConfig]]:
    changes: list[tuple[str, object]] = []
    tokens = max(2048, server.max_num_seqs)
    if tokens < server.max_num_batched_tokens:
        changes.append(("max_num_batched_tokens", tokens))
    if server.gpu_memory_utilization < 0.95:
        changes.append(("gpu_memory_utilization", 0.95))
    if server.kv_cache_dtype == "auto":
        changes.append(("kv_cache_dtype", "fp8"))
    lengths = (131072, 65536, 32768, 16384, 8192, 4096, 2048)
    changes += [("max_model_len", length) for length in lengths if length < server.max_model_len]
    splits = (tp for tp in (2, 4, 8) if tp > server.tensor_parallel_size)
    changes += [("tensor_parallel_size", tp) for tp in splits if divides_evenly(model, tp)]
    for flag, value in changes:
        yield flag, value, server.model_copy(update={flag: value})
