"""What vLLM does when a flag is not given, by version. GPUs only.

Read in vLLM's source (`engine/arg_utils.py`, `config/vllm.py`, `config/cache.py`) of each version that is named.
"""

from __future__ import annotations

import re
from typing import Literal

from maitre.errors import UnsupportedError, UsageError
from maitre.records import Cell
from maitre.units import GIB

Version = tuple[int, int, int]

OLDEST: Version = (0, 8, 0)
"""The V1 engine is vLLM's default from here on."""

NEWEST_READ: Version = (0, 33, 0)
"""The newest vLLM whose source the rules here were checked against; later versions are treated like it."""

Context = Literal["server", "llm"]
"""`server` is `vllm serve`; `llm` is the LLM class and `vllm bench throughput`."""

Tier = Literal["small", "large", "huge"]


def parse_version(text: str) -> Version:
    """Read `0.26.0`, `v0.11.1rc1` or `0.14.0rc2+cu130` as (major, minor, patch).

    Raises:
        UsageError: not a version.
        UnsupportedError: a vLLM older than 0.8.0, whose default engine is V0.
    """
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?![\d])(?:[.+\-]?[a-z0-9.+\-]*)$", text.strip())
    if not match:
        raise UsageError(f"'{text}' is not a version of vLLM", "write it as `vllm --version` prints it: 0.26.0")
    version = (int(match[1]), int(match[2]), int(match[3] or 0))
    if version < OLDEST:
        raise UnsupportedError(
            f"vLLM {text} runs the V0 engine, which has another scheduler and other defaults",
            "maitre covers vLLM 0.8.0 and later",
        )
    return version


def default_cell(
    version: str,
    gpu_name: str,
    gpu_memory_bytes: int,
    max_model_len: int,
    context: Context = "server",
    *,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> Cell:
    """The two dials as vLLM sets them, keeping those that the user has set.

    Args:
        version: vLLM's version.
        gpu_name: as the driver prints it.
        gpu_memory_bytes: the GPU's total memory.
        max_model_len: longest sequence in tokens; caps a defaulted token budget from 0.11.1 on.
        context: the entry point.
        max_num_seqs: the user's value, if any.
        max_num_batched_tokens: the user's value, if any.
    """
    parsed = parse_version(version)
    tier = _tier(parsed, gpu_name, gpu_memory_bytes)
    seqs = max_num_seqs or _default_seqs(parsed, tier)
    tokens = max_num_batched_tokens or _default_tokens(tier, context)
    if max_num_batched_tokens is None and parsed >= (0, 11, 1):
        tokens = min(tokens, seqs * max_model_len)
    if max_num_seqs is None and parsed >= (0, 10, 2):
        seqs = min(seqs, tokens)
    return Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens)


def default_gpu_memory_utilization(version: str) -> float:
    """Share of the GPU's memory that vLLM takes: 0.9, and 0.92 from 0.20 on (`config/cache.py`)."""
    return 0.92 if parse_version(version) >= (0, 20, 0) else 0.9


def capture_sizes(version: str, cell: Cell, *, datacentre_blackwell: bool = False) -> tuple[int, ...]:
    """Batch sizes that vLLM captures as CUDA graphs, ascending (`_set_cudagraph_sizes`).

    A decode batch is padded to the next of them; one above the largest runs without a graph.

    Args:
        version: vLLM's version.
        cell: the two dials.
        datacentre_blackwell: compute capability 10.x (B200, B300), where the cap is 1024 from 0.28 on.
    """
    parsed = parse_version(version)
    seqs, tokens = cell.max_num_seqs, cell.max_num_batched_tokens
    cap = 1024 if datacentre_blackwell and parsed >= (0, 28, 0) else 512
    top = cap if parsed < (0, 10, 0) else min(2 * seqs, cap)
    if parsed < (0, 11, 1):
        return tuple(size for size in (1, 2, 4, *range(8, top + 1, 8)) if size <= tokens)
    top = min(top, tokens)
    sizes = {1, 2, 4, *range(8, min(top + 1, 256), 8), *range(256, top + 1, 16)}
    if parsed >= (0, 20, 0):
        sizes.add(tokens)
    if parsed >= (0, 29, 0):
        sizes.add(seqs)
    return tuple(sorted(size for size in sizes if size <= top))


def _tier(version: Version, gpu_name: str, gpu_memory_bytes: int) -> Tier:
    name = gpu_name.lower()
    if version < (0, 8, 5):
        return "large" if "h100" in name or "h200" in name else "small"
    if gpu_memory_bytes < 70 * GIB or (version >= (0, 9, 0) and "a100" in name):
        return "small"
    if version >= (0, 33, 0) and "gb10" in name:
        return "small"
    return "huge" if version >= (0, 28, 0) and gpu_memory_bytes >= 160 * GIB else "large"


def _default_seqs(version: Version, tier: Tier) -> int:
    return 1024 if tier != "small" or version < (0, 8, 4) else 256


def _default_tokens(tier: Tier, context: Context) -> int:
    if context == "llm":
        return 8192 if tier == "small" else 16384
    return {"small": 2048, "large": 8192, "huge": 16384}[tier]
