"""From a model, a GPU and a server's settings to the KV pool, part by part."""

from __future__ import annotations

import math
from collections.abc import Iterator

from maitre.errors import DoesNotFitError, UnsupportedError
from maitre.gpus import Gpu
from maitre.kv_budget.activations import ProfileRun, activation_bytes
from maitre.kv_budget.cache_bytes import dtype_bytes
from maitre.kv_budget.layout import CacheFlags, Speculation, kv_layout
from maitre.kv_budget.lora import LoraSlots, lora_bytes
from maitre.kv_budget.pool import pool_of
from maitre.kv_budget.weights import divides_evenly, rotary_bytes, weight_bytes_per_gpu
from maitre.models import AttentionGeometry, Checkpoint
from maitre.records import KvBudget, MemoryPart, Record, ServerConfig
from maitre.units import GIB, MIB, format_bytes
from maitre.vllm import (
    check_server,
    keeps_large_blocks_whole,
    num_cuda_graphs,
    parse_version,
    sampler_bytes_per_logit,
    subtracts_cuda_graphs,
)

NON_TORCH_BYTES = 231 * MIB
"""Kernels and handles outside PyTorch that are loaded after vLLM's first reading (an H200, vLLM 0.26.0, twelve starts
of four models: 0.22 GiB each). CUDA's context and NCCL's buffers come before it, so they are not in the budget
(`v1/worker/gpu_worker.py`, `init_device`)."""

GRAPH_BYTES_PER_LAYER = round(0.22 * MIB)
"""One CUDA graph of one layer: 0.18 to 0.32 MiB in nine starts on an H200."""


def kv_bytes_per_token(model: AttentionGeometry, kv_cache_dtype: str, tensor_parallel_size: int, dtype: str) -> int:
    """Bytes of KV cache that one more token of a long sequence adds on one GPU.

    Raises:
        UsageError: the heads cannot be shared out, or no such data type.
        UnsupportedError: a data type that packs the cache.
    """
    flags = CacheFlags(kv_cache_dtype=kv_cache_dtype, tensor_parallel_size=tensor_parallel_size, dtype=dtype)
    return kv_layout(model, flags).kv_bytes_per_token


class Extras(Record):
    """What a server may have beside the settings of `ServerConfig`."""

    disable_hybrid_kv_cache_manager: bool = False
    speculation: Speculation | None = None
    lora: LoraSlots | None = None


NO_EXTRAS = Extras()


def estimate_kv_budget(
    model: Checkpoint, gpu: Gpu, server: ServerConfig, *, compiles: bool = True, extras: Extras = NO_EXTRAS
) -> KvBudget:
    """The KV pool that vLLM will have with these settings, and what takes the rest of the GPU.

    Args:
        model: the model.
        gpu: one of the `tensor_parallel_size` equal GPUs.
        server: vLLM's settings.
        compiles: the first start of this shape, which has the smaller pool; False when the compiled graphs are cached.
        extras: speculative decoding, LoRA, and no use of windows.

    Raises:
        UsageError: settings that vLLM refuses.
        UnsupportedError: the share of an extra is not known for this model.
        DoesNotFitError: nothing is left for the pool, or one request of max_model_len is larger than it.
    """
    check_server(server, model.max_position_embeddings)
    layout = kv_layout(model, cache_flags(server, extras))
    parts = memory_parts(model, gpu, server, compiles=compiles, extras=extras)
    pool, needed = parts[-1].num_bytes, needed_bytes(model, server, extras)
    if pool < needed:
        remedies = _remedies(model, gpu, server, extras)
        raise DoesNotFitError(_shortage(model, gpu, server, pool, needed), "; ".join(remedies))
    return pool_of(
        layout,
        pool // layout.bytes_per_block,
        max_model_len=server.max_model_len,
        in_flight_tokens=max_in_flight_tokens(server),
        parts=parts,
        source=f"{model.source} and {gpu.name} ({gpu.source}), vLLM {server.vllm_version}",
    )


def cache_flags(server: ServerConfig, extras: Extras = NO_EXTRAS) -> CacheFlags:
    """What of a server's settings decides how the cache is laid out.

    Hybrid models cache prefixes by default from 0.33 on (`config/model.py`).
    """
    return CacheFlags(
        kv_cache_dtype=server.kv_cache_dtype,
        dtype=server.dtype,
        tensor_parallel_size=server.tensor_parallel_size,
        block_size=server.block_size,
        enable_prefix_caching=server.enable_prefix_caching and parse_version(server.vllm_version) >= (0, 33),
        disable_hybrid_kv_cache_manager=extras.disable_hybrid_kv_cache_manager,
        speculation=extras.speculation,
    )


def max_in_flight_tokens(server: ServerConfig) -> int:
    """Tokens that may be scheduled and not yet settled: a whole step, and two of them with asynchronous scheduling.

    vLLM 0.32.0, `config/vllm.py`, `max_in_flight_tokens`; asynchronous by default from 0.14 on.
    """
    steps = 2 if parse_version(server.vllm_version) >= (0, 14) else 1
    return steps * server.max_num_batched_tokens


def memory_parts(
    model: Checkpoint, gpu: Gpu, server: ServerConfig, *, compiles: bool = True, extras: Extras = NO_EXTRAS
) -> tuple[MemoryPart, ...]:
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
    parts += _extra_parts(model, server, extras)
    if subtracted:
        estimate = f"{num_cuda_graphs(version, server.cell)} graphs, measured on an H200 to ±45 %"
        parts.append(MemoryPart(name="CUDA graphs", num_bytes=graphs, source=estimate))
    pool = gpu.memory_bytes - sum(part.num_bytes for part in parts)
    return (*parts, MemoryPart(name="KV pool", num_bytes=pool, source="the rest"))


def _extra_parts(model: Checkpoint, server: ServerConfig, extras: Extras) -> list[MemoryPart]:
    """The weights that LoRA and a draft model add.

    Raises:
        UnsupportedError: a draft whose weights are not known.
    """
    tp, parts = server.tensor_parallel_size, []
    if extras.lora:
        slots = extras.lora
        source = f"{slots.max_loras} slot(s) of rank {slots.max_lora_rank}"
        num_bytes = lora_bytes(model, slots, tp, dtype_bytes(model, server.dtype))
        parts.append(MemoryPart(name="LoRA slots", num_bytes=num_bytes, source=source))
    if extras.speculation and extras.speculation.method != "ngram":
        draft = extras.speculation.draft_model
        if not isinstance(draft, Checkpoint):
            what = draft.name if draft else f"the MTP layers of {model.name}"
            raise UnsupportedError(f"{what}: the size of the weights is not known", "name a draft model with its files")
        num_bytes = weight_bytes_per_gpu(draft, dtype_bytes(draft, server.dtype), tp)
        parts.append(MemoryPart(name="draft model", num_bytes=num_bytes, source=draft.weight_source))
    return parts


def profile_run(model: Checkpoint, server: ServerConfig, *, compiles: bool = True) -> ProfileRun:
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


def needed_bytes(model: AttentionGeometry, server: ServerConfig, extras: Extras = NO_EXTRAS) -> int:
    """The smallest pool on one GPU that vLLM starts with: one request of max_model_len, and never under two blocks.

    vLLM 0.26.0, `v1/core/kv_cache_utils.py`, `_check_enough_kv_cache_memory`.
    """
    layout = kv_layout(model, cache_flags(server, extras))
    blocks = layout.blocks_reserved(server.max_model_len, max_in_flight_tokens(server))
    return max(2, blocks) * layout.bytes_per_block


def _shortage(model: Checkpoint, gpu: Gpu, server: ServerConfig, pool: int, needed: int) -> str:
    short = f"{(needed - pool) / GIB:.2f} GiB short"
    if pool <= 0:
        return f"{model.name} leaves no room for a KV cache on {gpu.name}: {short} of one request of max_model_len"
    return (
        f"one request of max_model_len {server.max_model_len:,} needs {format_bytes(needed)} of KV cache, "
        f"{format_bytes(pool)} are left on {gpu.name}: {short}"
    )


def _remedies(model: Checkpoint, gpu: Gpu, server: ServerConfig, extras: Extras) -> list[str]:
    """Up to three single changes that make it fit, the cheapest first."""
    fitting: dict[str, str] = {}
    for flag, value, changed in _changes(model, server):
        pool = memory_parts(model, gpu, changed, extras=extras)[-1].num_bytes
        if flag not in fitting and pool >= needed_bytes(model, changed, extras):
            fitting[flag] = f"--{flag.replace('_', '-')} {value}"
    return list(fitting.values())[:3] or [
        "no single flag makes it fit: take a smaller or a quantized model, or a larger GPU"
    ]


def _changes(model: Checkpoint, server: ServerConfig) -> Iterator[tuple[str, object, ServerConfig]]:
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
