"""Answers from a recording: the steps' own times, the schedule from an exact replay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from maitre.errors import InputError, UsageError
from maitre.gpus import find_gpu
from maitre.recording import RecordedRun, Recording, load_recording, recorded_workload
from maitre.records import Cell, ServerConfig, Trial
from maitre.simulator.replay import Replay, replay_at_once
from maitre.simulator.rules import SchedulerRules
from maitre.trial.metrics import replay_run, summarize
from maitre.vllm.defaults import default_cell

RUN_SD = 0.005
"""Relative spread of one cell's time from run to run: live against fresh starts on the H200 differed by 0 to 1 %."""


class RecordedEngine:
    """A recording that can be asked like a server."""

    def __init__(self, path: Path) -> None:
        self.name = f"recorded:{path}"
        self.recording, runs = load_recording(path)
        self.workload = recorded_workload(self.recording)
        if self.workload.arrival_s is not None:
            raise InputError(
                f"{path}: requests arrived over time, so its schedule cannot be replayed exactly",
                "use a recording with all requests at once",
            )
        self._runs = {run.recorded.cell: run for run in runs if run.recorded.repeat == 0}

    @property
    def cells(self) -> Sequence[Cell]:
        """The recorded cells."""
        return list(self._runs)

    def run(self, cell: Cell) -> Trial:
        """What the recorded server did at this cell.

        Raises:
            UsageError: the cell was not recorded.
            InputError: the replay does not have the recorded steps.
        """
        run = self._runs.get(cell)
        if run is None:
            raise UsageError(f"{cell} was not recorded", f"recorded are {', '.join(map(str, self._runs))}")
        rules = recorded_rules(self.recording, cell)
        replay = replay_at_once(self.workload, rules)
        if not replays_exactly(replay, run):
            raise InputError(
                f"{self.name}, cell {cell}: the recorded schedule ({len(run.step_end_s)} steps) is not the one that "
                f"vLLM {self.recording.vllm_version} should make ({replay.num_steps} steps)",
                "was the recording made with other flags than it says?",
            )
        ran = replay_run(replay, run.step_end_s, self.workload, rules)
        return summarize(ran, self.workload, engine=self.name)

    def log_time_draws(
        self, cells: Sequence[Cell], num_draws: int, generator: np.random.Generator
    ) -> NDArray[np.float64]:
        """Independent noise of one run each, shape (num_draws, cells)."""
        return generator.normal(0.0, RUN_SD, (num_draws, len(cells)))


def recorded_rules(recording: Recording, cell: Cell) -> SchedulerRules:
    """The rules that the recorded server followed at a cell."""
    return SchedulerRules.of_version(
        recording.vllm_version,
        cell,
        recording.num_gpu_blocks,
        block_size=recording.block_size,
        enable_prefix_caching=recording.server.enable_prefix_caching,
        async_scheduling=recording.server.async_scheduling,
    )


def num_columns_off(replay: Replay, run: RecordedRun) -> int:
    """How many step columns differ in any step: 0 when every step computed what the recorded one did."""
    shared = replay.columns.keys() & run.columns.keys()
    return sum(not np.array_equal(replay.columns[name], run.columns[name]) for name in shared)


def replays_exactly(replay: Replay, run: RecordedRun) -> bool:
    """Whether every step of the replay computed what the recorded step did."""
    return num_columns_off(replay, run) == 0


def recorded_server(recording: Recording) -> ServerConfig:
    """The server as it was started."""
    server = recording.server
    return ServerConfig(
        model=recording.model,
        vllm_version=recording.vllm_version,
        gpu_memory_utilization=server.gpu_memory_utilization,
        max_model_len=server.max_model_len,
        block_size=recording.block_size,
        max_num_seqs=server.max_num_seqs,
        max_num_batched_tokens=server.max_num_batched_tokens,
        enable_prefix_caching=server.enable_prefix_caching,
    )


def nearest_default(recording: Recording, cells: Sequence[Cell]) -> Cell:
    """The recorded cell that is nearest to vLLM's default on that GPU, in doublings of the dials."""
    gpu = find_gpu(recording.gpu.split("(")[0].strip())
    default = default_cell(recording.vllm_version, gpu.name, gpu.memory_bytes, recording.server.max_model_len)

    def distance(cell: Cell) -> float:
        seqs = math.log2(cell.max_num_seqs / default.max_num_seqs)
        return math.hypot(seqs, math.log2(cell.max_num_batched_tokens / default.max_num_batched_tokens))

    return min(cells, key=distance)
