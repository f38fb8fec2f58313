"""A study's directory as a server that can be simulated: its settings, its step time, and its pool at each cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from maitre.calibration import Calibration, calibration_for, fit_step_time
from maitre.errors import InputError, UnsupportedError, UsageError
from maitre.files import read_text
from maitre.gpus import find_gpu
from maitre.kv_budget import kv_bytes_per_token
from maitre.models import load_model
from maitre.recording import Recording, load_recording
from maitre.records import Cell, ServerConfig, Study, Workload
from maitre.study import StudyDirectory
from maitre.trial.rate_surface import nearest
from maitre.trial.replay_check import recorded_prior
from maitre.verify.foresight.steady_traffic import KnownServer
from maitre.workload.store import parse_stored


@dataclass(frozen=True, slots=True)
class StudiedServer:
    """What a study knew."""

    study: Study
    workload: Workload
    """The traffic that it was tuned for."""
    known: KnownServer
    """With the dials of the deployed cell."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Of the grid, without cells that take other flags than the deployed one."""
        return tuple(dict.fromkeys(trial.cell for trial in self.study.cells if not trial.flags))


def read_study(path: Path, deployed: Cell | None = None, num_gpu_blocks: int | None = None) -> StudiedServer:
    """Read a study, and what it measured.

    Args:
        path: its directory.
        deployed: the cell in production; the study's recommendation if it is not known.
        num_gpu_blocks: the pool of one engine in production, where known; those of other cells follow it in the ratio
            that the study saw.

    Raises:
        InputError: no study is there, or it is broken, or it tells too little of its server to simulate it.
    """
    study = StudyDirectory(path).load()
    cell = deployed or study.recommended
    recorded = path / "recording.json"
    recording = load_recording(recorded) if recorded.exists() else None
    if recording is None:
        calibration = _by_name(study, path)
    else:
        source = f"{len(recording[1])} runs of {path}"
        calibration = fit_step_time(recording[1], recorded_prior(recording[0]), source)
    pools = _pools(study, recording and recording[0])
    return StudiedServer(
        study=study,
        workload=_workload(path / "workload.json"),
        known=KnownServer(study.server.at(cell), calibration, _pool_at(pools, cell, num_gpu_blocks, path)),
    )


def _workload(path: Path) -> Workload:
    workload = parse_stored(read_text(path), str(path))
    if workload is None:
        raise InputError(f"{path}: not the workload of a study", "name the directory of a study with --study")
    return workload


def _by_name(study: Study, path: Path) -> Calibration:
    """The calibration that ships for the study's model and GPU, or the scaled roofline."""
    server: ServerConfig = study.server
    try:
        model, gpu = load_model(server.model), find_gpu(study.gpu)
        per_token = kv_bytes_per_token(model, server.kv_cache_dtype, server.tensor_parallel_size, server.dtype)
    except (InputError, UsageError, UnsupportedError) as error:
        raise InputError(
            f"{path}: the study recorded no steps, and its model and GPU cannot be simulated ({error.args[0]})",
            "give --model and --gpu instead of --study, or tune with --engine live, which records steps",
        ) from None
    return calibration_for(model, gpu, server, per_token)


def _pools(study: Study, recording: Recording | None) -> dict[Cell, int]:
    """What the study knows of the pools, in blocks."""
    trials = {trial.cell: trial.num_gpu_blocks for trial in study.cells if trial.num_gpu_blocks}
    budgets = {cell: study.budgets[str(cell)].num_gpu_blocks for cell in trials if str(cell) in study.budgets}
    if recording is None:
        return {**trials, **budgets}
    recorded = {one.cell: one.num_gpu_blocks or recording.num_gpu_blocks for one in recording.cells}
    return {**trials, **budgets, **recorded}


def _pool_at(pools: dict[Cell, int], deployed: Cell, num_gpu_blocks: int | None, path: Path) -> Callable[[Cell], int]:
    """The pool at a cell: that of the nearest cell that is known, in the ratio that production shows."""
    known = pools or ({deployed: num_gpu_blocks} if num_gpu_blocks else {})
    if not known:
        raise InputError(
            f"{path}: the study does not tell the size of the KV pool",
            "let the source of the metrics have vllm:cache_config_info, or give --blocks",
        )

    def at(cell: Cell) -> int:
        near = nearest(cell, known)
        assert near is not None
        return known[near]

    ratio = num_gpu_blocks / at(deployed) if num_gpu_blocks else 1.0
    return lambda cell: max(2, round(at(cell) * ratio))
