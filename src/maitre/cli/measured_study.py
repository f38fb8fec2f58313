"""What every engine that measures a real server takes from the command line."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitre.cli.grid_options import GridOptions
    from maitre.cli.server_options import ServerOptions
    from maitre.records import Cell, Workload

SMALL_VOCABULARY = 32_000
"""Where the model's own is not known: every common model has as many tokens."""


def present_setting(grid: GridOptions, flag: Callable[[str], str | None], options: ServerOptions) -> Cell:
    """The present setting: named, or in the user's command, or vLLM's default on a named GPU.

    Args:
        grid: may name it.
        flag: the value of one of vLLM's flags in the user's command; None if it is not there.
        options: may name the GPU.

    Raises:
        UsageError: nothing of this is given.
    """
    from maitre.cli.grid_options import parse_cell
    from maitre.errors import UsageError
    from maitre.gpus import find_gpu
    from maitre.vllm import default_cell

    named = grid.present_cell()
    if named is not None:
        return named
    seqs, tokens = flag("--max-num-seqs"), flag("--max-num-batched-tokens")
    if seqs and tokens:
        return parse_cell(f"{seqs}x{tokens}")
    if options.gpu is None:
        raise UsageError(
            "the present setting is not known: vLLM's default depends on the GPU",
            "add --present SEQSxTOKENS, or --gpu, or both flags to the command",
        )
    gpu = find_gpu(options.gpu)
    return default_cell(options.vllm_version, gpu.name, gpu.memory_bytes, options.model_len() or 2**20)


def question(traffic: Workload, cells: Sequence[Cell], **facts: Any) -> dict[str, Any]:
    """Everything that decides the trials, as JSON.

    Args:
        traffic: the workload.
        cells: of the grid, the present one first.
        facts: whatever else the engine's trials depend on.
    """
    digest = hashlib.sha256(traffic.model_dump_json().encode()).hexdigest()
    return {"workload_sha256": digest, "cells": [str(cell) for cell in dict.fromkeys(cells)], **facts}


def question_path(workload_name: str, engine: str, asked: dict[str, Any]) -> Path:
    """The directory of this question; another one when the question has its answer already."""
    from datetime import datetime
    from json import dumps

    from maitre.study import is_open, new_study_path

    fresh = new_study_path(workload_name, datetime.now().astimezone())
    digest = hashlib.sha256(dumps(asked).encode()).hexdigest()[:8]
    same = fresh.with_name(f"{fresh.name.rsplit('-', 2)[0]}-{engine}-{digest}")
    return same if is_open(same) else fresh


def vocabulary(model: str | None) -> int | None:
    """Tokens of a model's vocabulary, where its config.json is at hand or maitre knows its name.

    Raises:
        InputError: the config.json is broken.
    """
    from maitre.errors import UsageError
    from maitre.files import read_json
    from maitre.models import load_model

    if model is None:
        return None
    path = Path(model) if model.endswith(".json") else Path(model) / "config.json"
    if not path.is_file():
        try:
            return load_model(model).vocab_size
        except UsageError:  # a name that only its owner's hub knows
            return None
    config = read_json(path)
    for content in (config, config.get("text_config") if isinstance(config, dict) else None):
        size = content.get("vocab_size") if isinstance(content, dict) else None
        if isinstance(size, int) and size > 0:
            return size
    return None
