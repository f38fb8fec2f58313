"""`maitre tune --engine live|restart … -- vllm serve MODEL …`: measure the user's own server."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maitre.cli.grid_options import GridOptions
    from maitre.cli.server_options import ServerOptions
    from maitre.cli.workload_options import WorkloadOptions
    from maitre.records import Cell, FailedTrial, ServerConfig, Study, Trial, Workload
    from maitre.trial.command import ServeCommand
    from maitre.trial.live import LiveEngine


def measure(
    workload: WorkloadOptions, options: ServerOptions, grid: GridOptions, serve_command: str | None,
    blocks: int | None, path: Path | None, epsilon: float, delta: float, *, restart: bool, open_loop: bool,
) -> Study:  # fmt: skip
    """Start the server, measure every cell, and conclude. The same command resumes what was interrupted."""
    from maitre.cli.progress import measured_progress
    from maitre.cli.simulate import check_open_loop
    from maitre.records import Trial
    from maitre.study import StudyDirectory
    from maitre.trial.command import ServeCommand
    from maitre.trial.live import LiveEngine, LiveOptions
    from maitre.tune import tune_live

    command = ServeCommand.parse(shlex.split(serve_command or ""))
    present = _present(grid, command, options)
    cells = _cells(grid, present)
    traffic = workload.load()
    check_open_loop(traffic, open_loop=open_loop)
    asked = _asked(traffic, command, cells, blocks, restart=restart, open_loop=open_loop, seed=workload.seed)
    directory, finished = StudyDirectory.resume(path or _study_path(traffic.name, asked), traffic, asked)
    live = LiveOptions(
        restart=restart, open_loop=open_loop, seed=workload.seed, num_gpu_blocks=blocks, **_vocabulary(command)
    )
    with (
        directory,
        LiveEngine(command, traffic, _largest(cells), directory.path, live) as engine,
        measured_progress(cells, finished) as show,
    ):
        server = _server_config(engine, command, present, traffic)

        def keep(trial: Trial | FailedTrial) -> None:
            if isinstance(trial, Trial):
                directory.add_trial(trial)
            show(trial)

        finished_study = tune_live(
            engine, traffic, server, cells, gpu=options.gpu or "a GPU that was not named", finished=finished,
            open_loop=open_loop, epsilon=epsilon, delta=delta, seed=workload.seed, on_trial=keep,
        )  # fmt: skip
    return directory.finish(finished_study)


def _present(grid: GridOptions, command: ServeCommand, options: ServerOptions) -> Cell:
    """The present setting: named, or in the command, or vLLM's default on a named GPU."""
    from maitre.cli.grid_options import parse_cell
    from maitre.errors import UsageError
    from maitre.gpus import find_gpu
    from maitre.vllm import default_cell

    named = grid.present_cell()
    if named is not None:
        return named
    seqs, tokens = command.flag("--max-num-seqs"), command.flag("--max-num-batched-tokens")
    if seqs and tokens:
        return parse_cell(f"{seqs}x{tokens}")
    if options.gpu is None:
        raise UsageError(
            "the present setting is not known: vLLM's default depends on the GPU",
            "add --present SEQSxTOKENS, or --gpu, or both flags to the command",
        )
    gpu = find_gpu(options.gpu)
    length = options.model_len() or 2**20
    return default_cell(options.vllm_version, gpu.name, gpu.memory_bytes, length)


def _cells(grid: GridOptions, present: Cell) -> list[Cell]:
    from maitre.errors import UsageError

    if grid.grid == "auto":
        raise UsageError("--grid auto needs a KV pool that is known before the start", "give the lists")
    return [present, *grid.listed_cells()]


def _largest(cells: list[Cell]) -> Cell:
    from maitre.records import Cell

    return Cell(
        max_num_seqs=max(cell.max_num_seqs for cell in cells),
        max_num_batched_tokens=max(cell.max_num_batched_tokens for cell in cells),
    )


def _asked(
    traffic: Workload, command: ServeCommand, cells: list[Cell], blocks: int | None, **flags: Any
) -> dict[str, Any]:
    """Everything that decides the trials."""
    digest = hashlib.sha256(traffic.model_dump_json().encode()).hexdigest()
    return {
        "workload_sha256": digest,
        "command": str(command),
        "cells": [str(cell) for cell in dict.fromkeys(cells)],
        "num_gpu_blocks": blocks,
        **flags,
    }


def _study_path(workload_name: str, asked: dict[str, Any]) -> Path:
    """The directory of this question; another one when the question was answered before."""
    from datetime import datetime
    from json import dumps

    from maitre.study import new_study_path

    fresh = new_study_path(workload_name, datetime.now().astimezone())
    digest = hashlib.sha256(dumps(asked).encode()).hexdigest()[:8]
    same = fresh.with_name(f"{fresh.name.rsplit('-', 2)[0]}-live-{digest}")
    return fresh if (same / "study.json").exists() else same


def _vocabulary(command: ServeCommand) -> dict[str, int]:
    """The model's vocabulary, where its config.json is at hand."""
    from maitre.files import read_json

    path = Path(command.model or "") / "config.json"
    if command.model is None or not path.is_file():
        return {}
    config = read_json(path)
    size = config.get("vocab_size") if isinstance(config, dict) else None
    return {"vocab_size": size} if isinstance(size, int) and size > 0 else {}


def _server_config(engine: LiveEngine, command: ServeCommand, present: Cell, traffic: Workload) -> ServerConfig:
    """Start the server, and take from it what it says of itself."""
    from maitre.errors import InputError
    from maitre.records import ServerConfig

    started = engine.start(present)
    longest = int((traffic.prompt_tokens + traffic.output_tokens).max())
    if longest > started.start.max_model_len:
        raise InputError(
            f"the longest request has {longest} tokens, the server's max_model_len is {started.start.max_model_len}",
            "raise --max-model-len, or leave such requests out of the workload",
        )
    return ServerConfig(
        model=command.model or "unknown",
        vllm_version=started.vllm_version,
        gpu_memory_utilization=float(command.flag("--gpu-memory-utilization") or 0.9),
        max_model_len=started.start.max_model_len,
        block_size=started.start.block_size,
        enable_prefix_caching=started.start.enable_prefix_caching,
        **present.model_dump(),
    )
