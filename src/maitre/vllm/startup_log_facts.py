"""What single lines of a start-up say of memory and KV cache: one pattern a wording, named groups for the figures.

Wordings are those of vLLM 0.4.2 to 0.33.0 (`v1/core/kv_cache_utils.py`, `v1/worker/gpu_worker.py`,
`v1/worker/cpu_worker.py`, V0's `worker/worker.py` and executors) and of its plug-ins for Ascend, Gaudi and TPU.
"""

from __future__ import annotations

import re
from typing import Any

Facts = dict[str, Any]

_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        r"KV cache size: (?P<kv_cache_tokens>[\d,]+) tokens",
        r"Maximum concurrency for (?P<max_concurrency_at_len>[\d,]+) tokens per request: (?P<max_concurrency>[\d.,]+)x",
        r"#\s*\w+ blocks: (?P<num_gpu_blocks>[\d,]*\d)(?:,\s*#\s*CPU blocks: (?P<num_cpu_blocks>[\d,]+))?",
        r"cache_config_info with initialization after num_gpu_blocks is: (?P<num_gpu_blocks>\d+)",
        r"Available KV cache memory: (?P<available_kv_gib>-?[\d.]+) GiB",
        r"(?:Explicitly|Auto) set \((?P<available_kv_gib>-?[\d.]+)/[\d.]+\) GiB for KV cache",
        r"available KV cache memory \((?P<available_kv_gib>-?[\d.]+) Gi?B",
        r"\bkv_cache_size=(?P<available_kv_gib>-?[\d.]+)GiB",
        r"reserved for KV Cache is (?P<available_kv_gib>-?[\d.]+)GiB",
        r"reserved (?P<available_kv_gib>[\d.]+) GiB memory for KV Cache as specified",
        r"(?P<available_kv_gib>[\d.]+) GiB reserved for usable KV cache",
        r"Available memory: (?P<available_kv_bytes>-?\d+), total memory: (?P<device_bytes>\d+)",
        r"total_hbm_avail_gb=(?P<tpu_available_gib>-?[\d.]+)GiB",
        r"that can be stored in KV cache \((?P<stored_tokens>\d+)\)",
        r"max seq len \((?P<max_model_len>\d+)\)",
        r"\((?P<kv_needed_gib>[\d.]+) Gi?B KV cache is needed",
        r"estimated maximum model length is (?P<estimated_max_model_len>\d+)",
        r"[Ll]oading (?:model weights )?took (?P<weights_gib>[\d.]+) Gi?B",
        r"model weights take (?P<weights_gib>[\d.]+)GiB",
        r"Actual usage is (?P<weights_gib>[\d.]+) GiB for weight,",
        r"Actual usage is (?P<consumed_gib>[\d.]+) GiB for consumed",
        r"non_torch_memory takes (?P<non_torch_gib>-?[\d.]+)GiB",
        r"(?P<non_torch_gib>-?[\d.]+) GiB for non-torch memory",
        r"\bnon_torch_memory=(?P<non_torch_gib>-?[\d.]+)GiB",
        r"\btorch peak memory increase: (?P<peak_activation_gib>-?[\d.]+)GiB",
        r"non-torch forward increase memory: (?P<non_torch_gib>-?[\d.]+)GiB",
        r"; weights memory: (?P<weights_gib>[\d.]+)GiB",
        r"activation peak memory takes (?P<peak_activation_gib>-?[\d.]+)GiB",
        r"(?P<peak_activation_gib>-?[\d.]+) GiB for peak activation",
        r"Estimated CUDA graph memory: (?P<cuda_graph_gib>-?[\d.]+) GiB total",
        r"Graph capturing finished in \d+ secs, took (?P<captured_graph_gib>-?[\d.]+) GiB",
        r"\btotal_gpu_memory=(?P<device_gib>[\d.]+)GiB",
        r"total_gpu_memory \((?P<device_gib>[\d.]+)GiB\) x gpu_memory_utilization \((?P<gpu_memory_utilization>[\d.]+)",
        r"Free memory on device[^(]{0,40}\([\d.]+/(?P<device_gib>[\d.]+) GiB\)",
        r"utilization is \((?P<gpu_memory_utilization>[\d.]+),",
        r"current --gpu-memory-utilization=(?P<gpu_memory_utilization>[\d.]+) is equivalent",
        r"KV Cache is .*\bgpu_memory_utilization=(?P<gpu_memory_utilization>[\d.]+)",
        r"Memory profiling results: .*\bgpu_memory_utilization=(?P<gpu_memory_utilization>[\d.]+)",
        r"Using max model len (?P<max_model_len>\d+)",
        r"max_model_len: reduced from \d+ to (?P<max_model_len>\d+)",
        r"Setting (?:kv cache|attention) block size to (?P<block_size>\d+)",
        r"(?P<hybrid_manager_disabled>Hybrid KV cache manager is disabled)",
        r"(?P<loads_compiled_graphs>Directly load (?:the compiled graph|AOT compilation))",
    )
)
_ANCHORS = re.compile(
    r"KV [Cc]ache|blocks: |_blocks is|Maximum conc|emory|took |max seq len|max model len|max_model_len: |block size to|"
    r"total_hbm|Directly load"
)
_QUOTES = re.compile(r"Received request|Generated response|Request \S+ details|Added request|non-default args|args: ")
"""Lines that repeat what a user wrote."""

_TEXTS = {"hybrid_manager_disabled", "loads_compiled_graphs"}
_MAX_VALUE = 10**18
"""A longer number is none that a server writes."""
_MAX_CHARACTERS = 4000
"""A line of figures is short; a longer one is something else."""


def memory_facts(message: str) -> Facts:
    """The figures in one message, by name; empty for most lines.

    Args:
        message: without prefix, colours and level.
    """
    if len(message) > _MAX_CHARACTERS or not _ANCHORS.search(message) or _QUOTES.match(message):
        return {}
    facts: Facts = {}
    for pattern in _PATTERNS:
        if match := pattern.search(message):
            for key, text in match.groupdict().items():
                if text is not None and (value := True if key in _TEXTS else _number(text)) is not None:
                    facts.setdefault(key, value)
    if not 0 < facts.get("gpu_memory_utilization", 1) <= 1:
        del facts["gpu_memory_utilization"]
    if "available_kv_bytes" in facts:
        facts["available_kv_gib"] = facts.pop("available_kv_bytes") / 2**30
        facts["device_gib"] = facts.pop("device_bytes") / 2**30
    return facts


def _number(text: str) -> int | float | None:
    text = text.replace(",", "").rstrip(".")
    try:
        value = float(text) if "." in text else int(text[:18])
    except ValueError:
        return None
    return value if abs(value) < _MAX_VALUE else None
