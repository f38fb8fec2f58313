"""The command line that deploys a server."""

from __future__ import annotations

from maitre.records import Cell, Flags, ServerConfig


def flag_words(flags: Flags) -> list[str]:
    """The flags of a cell as they are written on a command line."""
    return [word for name, value in flags for word in (f"--{name.replace('_', '-')}", value)]


def serve_command(server: ServerConfig, cell: Cell) -> list[str]:
    """`vllm serve` with the two dials; flags at vLLM's default are left out.

    Args:
        server: what the surface was made for.
        cell: the dials to set.
    """
    server = server.at(cell)
    flags = {
        "--dtype": server.dtype if server.dtype != "auto" else None,
        "--kv-cache-dtype": server.kv_cache_dtype if server.kv_cache_dtype != "auto" else None,
        "--tensor-parallel-size": server.tensor_parallel_size if server.tensor_parallel_size > 1 else None,
        "--gpu-memory-utilization": server.gpu_memory_utilization,
        "--max-model-len": server.max_model_len,
        "--block-size": server.block_size if server.block_size != 16 else None,
        "--long-prefill-token-threshold": server.long_prefill_token_threshold or None,
        "--watermark": server.watermark or None,
        "--scheduling-policy": server.scheduling_policy if server.scheduling_policy != "fcfs" else None,
        "--max-num-seqs": server.max_num_seqs,
        "--max-num-batched-tokens": server.max_num_batched_tokens,
    }
    words = ["vllm", "serve", server.model]
    for flag, value in flags.items():
        if value is not None:
            words += [flag, str(value)]
    if not server.enable_prefix_caching:
        words.append("--no-enable-prefix-caching")
    return words
