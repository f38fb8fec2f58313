"""GPUs: memory, bandwidth and arithmetic of the cards that people serve on."""

from __future__ import annotations

import difflib
import json
from functools import cache
from importlib import resources

from pydantic import Field

from maitre.errors import UsageError
from maitre.records import Record
from maitre.units import GIB, MIB

_MAKERS = ("nvidia", "geforce", "tesla", "amd", "instinct")


class Gpu(Record):
    """One GPU. Rates are peak figures of the vendor, dense (no structured sparsity)."""

    name: str
    """As `nvidia-smi` or `rocm-smi` prints it; vLLM's defaults look at it."""
    aliases: tuple[str, ...] = ()
    driver_memory_bytes: int = Field(ge=1)
    """Memory that `nvidia-smi` lists."""
    memory_bytes: int = Field(ge=1)
    """Memory that CUDA offers to a process (`cudaMemGetInfo`), the figure that vLLM multiplies by
    gpu_memory_utilization. Drivers differ by up to 0.2 GiB."""
    memory_bandwidth_bytes_per_s: float = Field(gt=0)
    half_flops_per_s: float = Field(gt=0)
    """bfloat16, or float16 on cards without it, with float32 accumulation."""
    fp8_flops_per_s: float | None
    """None where the card has no fp8 arithmetic."""
    source: str
    """The vendor's document for bandwidth and arithmetic."""
    memory_source: str = "total in start-up and out-of-memory messages of vLLM and PyTorch on this card, to 0.01 GiB"


def known_gpus() -> list[Gpu]:
    """All GPUs that ship with the package."""
    return list(_table())


def find_gpu(name: str) -> Gpu:
    """The GPU that `name` means, whatever its case, spaces, dashes and maker's prefix.

    Raises:
        UsageError: no such GPU, or several sizes of it.
    """
    spelled = {_fold(spelling): gpu for gpu in _table() for spelling in (gpu.name, *gpu.aliases)}
    folded = _fold(name)
    if gpu := spelled.get(folded):
        return gpu
    sizes = sorted({gpu.aliases[0] for text, gpu in spelled.items() if folded and text.startswith(folded)})
    if len(sizes) > 1 and any(c.isdigit() for c in folded):
        raise UsageError(f"'{name}' comes in several sizes", f"say which: {', '.join(sizes)}")
    near = difflib.get_close_matches(folded, spelled, n=5, cutoff=0.5)
    names = list(dict.fromkeys(_short(spelled[text]) for text in near))[:3]
    known = ", ".join(sorted(_short(gpu) for gpu in _table()))
    raise UsageError(f"GPU '{name}' is not known", f"did you mean {', '.join(names)}?" if names else f"known: {known}")


def _short(gpu: Gpu) -> str:
    bare = " ".join(word for word in gpu.name.split() if word.lower() not in _MAKERS)
    return min((bare, *gpu.aliases), key=len)


def _fold(name: str) -> str:
    words = name.lower().replace("-", " ").replace("_", " ").split()
    return "".join(word for word in words if word not in _MAKERS)


@cache
def _table() -> tuple[Gpu, ...]:
    rows = json.loads(resources.files("maitre").joinpath("data/gpus.json").read_text("utf-8"))
    return tuple(
        Gpu(
            name=row["name"],
            aliases=tuple(row["aliases"]),
            driver_memory_bytes=row["driver_mib"] * MIB,
            memory_bytes=round(row["visible_gib"] * GIB),
            memory_bandwidth_bytes_per_s=row["bandwidth_gb_per_s"] * 1e9,
            half_flops_per_s=row["half_tflops"] * 1e12,
            fp8_flops_per_s=row["fp8_tflops"] and row["fp8_tflops"] * 1e12,
            source=row["source"],
        )
        for row in rows
    )
