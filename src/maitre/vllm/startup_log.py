"""vLLM's start-up log, of any version and device: the KV pool, the flags in force, and why a start failed.

Read line by line in bounded memory: neither a log of many gigabytes nor a line of many megabytes is held.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from maitre.errors import InputError
from maitre.vllm.failures import FailureCode, ServerFailure, classify_failure
from maitre.vllm.startup_log_lines import log_lines
from maitre.vllm.startup_log_ranks import combine_ranks, derived_block_size
from maitre.vllm.startup_log_record import EngineCache, Startup
from maitre.vllm.startup_log_starts import Start, what_it_says, with_whole_commands

MAX_STARTS = 1000
MAX_SOURCES = 64
"""Pods or containers in one file; more names than this are no names, and the file is read as one server's."""

_FLAGS = (
    "version", "model", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "tensor_parallel_size",
    "pipeline_parallel_size", "data_parallel_size", "gpu_memory_utilization", "kv_cache_dtype", "dtype",
    "num_gpu_blocks_override", "kv_cache_memory_bytes", "enforce_eager", "block_size",
)  # fmt: skip
_LAST = (
    "max_model_len", "estimated_max_model_len", "kv_needed_gib", "gpu_memory_utilization", "block_size", "device_gib",
    "weights_gib", "consumed_gib", "peak_activation_gib", "non_torch_gib", "cuda_graph_gib", "captured_graph_gib",
)  # fmt: skip
_WORDS: dict[FailureCode, str] = {"oom-weights": "oom-other", "oom-graphs": "oom-other"}


def read_startups(chunks: Iterable[bytes], name: str) -> list[Startup]:
    """Every start that a log shows, in the order in which they begin.

    Args:
        chunks: the log's bytes, cut anywhere.
        name: what to call it in a message.

    Raises:
        InputError: nothing of a vLLM start-up in it, or more than `MAX_STARTS`.
    """
    found: dict[int, Startup | None] = {}
    current: dict[str, Start] = {}
    for line in with_whole_commands(log_lines(chunks)):
        source = line.source if line.source in current or len(current) < MAX_SOURCES else ""
        said = what_it_says(line.message)
        start = current.get(source)
        if start is None or start.ends_before(line, said):
            if start is not None:
                found[start.number] = summary(start)
            if len(found) >= MAX_STARTS:
                raise InputError(f"{name}: more than {MAX_STARTS} starts", "give the part of the log that matters")
            start = current[source] = Start(source, len(found))
            found[start.number] = None
        start.add(line, said)
    found |= {start.number: None if start.is_empty else summary(start) for start in current.values()}
    startups = [startup for startup in found.values() if startup is not None]
    if not startups:
        raise InputError(
            f"{name}: no line of a vLLM start-up",
            "give what `vllm serve` printed from its start on, such as `docker logs NAME 2>&1`",
        )
    return startups


def summary(start: Start) -> Startup:
    """What all lines of a start say together."""
    flags, seen = start.flags, start.observations
    pool = combine_ranks(seen, flags)
    values = {key: flags[key] for key in _FLAGS if key in flags}
    for row in seen:
        values |= {key: row.facts[key] for key in _LAST if key in row.facts}
    values |= pool.totals
    available = [row.facts["available_kv_gib"] for row in seen if "available_kv_gib" in row.facts]
    values["available_kv_gib"] = min(available) if available else _tpu_available(seen, flags)
    if "block_size" not in values and values.keys() >= {"num_gpu_blocks", "max_concurrency", "max_concurrency_at_len"}:
        values["block_size"] = derived_block_size(
            values["num_gpu_blocks"], values["max_concurrency"], values["max_concurrency_at_len"]
        )
    if "kv_cache_tokens" not in values:
        values["kv_cache_tokens"] = _tokens(values, seen)
    if "max_concurrency" in values and "max_concurrency_at_len" in values:
        values |= _full_length(values)
    switches = ("hybrid_manager_disabled", "loads_compiled_graphs")
    values |= {key: any(row.facts.get(key) for row in seen) for key in switches}
    return Startup(
        place=start.source, engines=len(pool.engines) or None, by_engine=_with_tokens(pool.engines, values),
        combine_rule=pool.combine_rule, is_ready=start.is_ready, notes=(*pool.notes, *_notes(values)),
        **values, **_failure(start),
    )  # fmt: skip


def _with_tokens(engines: tuple[EngineCache, ...], values: dict[str, Any]) -> tuple[EngineCache, ...]:
    """Each engine's tokens where only its blocks are printed."""
    size = values.get("block_size")
    return tuple(
        engine.model_copy(update={"kv_cache_tokens": engine.num_gpu_blocks * size})
        if size and engine.kv_cache_tokens is None and engine.num_gpu_blocks is not None
        else engine
        for engine in engines
    )


def _tokens(values: dict[str, Any], seen: list[Any]) -> int | None:
    """From the blocks, else from the error that names what fits."""
    if values.get("num_gpu_blocks") and values.get("block_size"):
        return int(values["num_gpu_blocks"] * values["block_size"])
    stored = [row.facts["stored_tokens"] for row in seen if "stored_tokens" in row.facts]
    return min(stored) if stored else None


def _tpu_available(seen: list[Any], flags: dict[str, Any]) -> float | None:
    """What one TPU chip has left; vLLM's TPU plug-in prints the sum over its chips."""
    left = [row.facts["tpu_available_gib"] for row in seen if "tpu_available_gib" in row.facts]
    chips = flags.get("tensor_parallel_size")
    return min(left) / chips if left and chips else None


def _full_length(values: dict[str, Any]) -> dict[str, Any]:
    """The tokens of the concurrency line, and whether the token line agrees within the rounding of both."""
    length = values["max_concurrency_at_len"]
    full = values["max_concurrency"] * length
    found: dict[str, Any] = {"full_length_tokens": round(full)}
    if values.get("kv_cache_tokens") is not None:
        allowed = 0.0051 * length * max(1, full / max(1, values["kv_cache_tokens"])) + 0.02 * full
        found["two_lines_disagree"] = abs(values["kv_cache_tokens"] - full) > allowed
    return found


def _notes(values: dict[str, Any]) -> list[str]:
    notes = []
    if values.get("two_lines_disagree"):
        notes.append(
            f"the token line ({values['kv_cache_tokens']:,}) and the concurrency line "
            f"({values['full_length_tokens']:,}) disagree, as for hybrid models before 0.20: believe the concurrency"
        )
    if values.get("hybrid_manager_disabled"):
        notes.append("the hybrid KV cache manager is off: layers with a window pay for the whole length")
    if values.get("num_gpu_blocks_override"):
        notes.append("num_gpu_blocks_override sets the pool, not the memory")
    if values.get("kv_cache_memory_bytes"):
        notes.append("kv_cache_memory_bytes sets the pool, not gpu_memory_utilization")
    return notes


def _failure(start: Start) -> dict[str, Any]:
    """Why it failed; nothing where it did not."""
    found = classify_failure(start.text(), None, timed_out=False)
    if found.code == "unknown" and (start.is_ready or not start.failed):
        return {}
    return _described(found)


def _described(found: ServerFailure) -> dict[str, Any]:
    return {
        "failure": _WORDS.get(found.code, found.code),
        "failure_code": found.code,
        "failure_message": found.message,
        "remedy": found.remedy,
    }
