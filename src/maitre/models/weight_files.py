"""The size of the weights beside a config.json: from an index, or from the files themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from maitre.errors import InputError
from maitre.files import read_json

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_PATTERNS = (("*.safetensors", "safetensors"), ("*.gguf", "GGUF"), ("pytorch_model*.bin", "PyTorch"))
"""In the order in which vLLM looks for them (`model_executor/model_loader/default_loader.py`)."""

_PART_OF_SEVERAL = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def weight_bytes_in(directory: Path) -> tuple[int, str] | None:
    """Bytes of the weights in a directory, and where the figure comes from; None where there are none.

    Raises:
        InputError: an index without a size, or several GGUF files of which one has to be chosen.
    """
    for index in (directory / name for name in _INDEXES):
        if index.is_file():
            return _total_size(index), f"metadata.total_size of {index.name}"
    for pattern, kind in _PATTERNS:
        if files := _without_copies(sorted(directory.glob(pattern))):
            return sum(file.stat().st_size for file in files), f"the size of {len(files)} {kind} file(s)"
    return None


def with_quantization(config: dict[str, Any], directory: Path) -> dict[str, Any]:
    """The config, with the quantization that stands in a file of its own (ModelOpt), or that GGUF files mean."""
    if config.get("quantization_config"):
        return config
    separate = directory / "hf_quant_config.json"
    if separate.is_file():
        content = read_json(separate)
        inner = content if isinstance(content, dict) else {}
        return config | {"quantization_config": {"quant_method": "modelopt"} | inner}
    if list(directory.glob("*.gguf")) and not list(directory.glob("*.safetensors")):
        return config | {"quantization_config": {"quant_method": "gguf"}}
    return config


def _total_size(index: Path) -> int:
    content = read_json(index)
    metadata = content.get("metadata") if isinstance(content, dict) else None
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if not isinstance(total, int | float) or not 1 <= total < 1e16:
        raise InputError(
            f"{index}: metadata.total_size is {total!r}, a number of bytes was expected", "fetch the index again"
        )
    return int(total)


def _without_copies(files: list[Path]) -> list[Path]:
    """The files that load together: Mistral's consolidated copy and other quantizations left out.

    Raises:
        InputError: several whole GGUF files.
    """
    own = [file for file in files if not file.name.startswith("consolidated")]
    whole = [file for file in own if file.suffix == ".gguf" and not _PART_OF_SEVERAL.search(file.name)]
    if len(whole) > 1 or (whole and len(own) > 1):
        raise InputError(
            f"{whole[0].parent}: {len(own)} GGUF files, one of which has to be chosen ({own[0].name}, {own[1].name} …)",
            "keep one of them in a directory with its config.json",
        )
    return own or files
