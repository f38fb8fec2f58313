"""Answers from a recording: the steps' own times, and the schedule from an exact replay.

A run over HTTP is recorded with the times of its requests; its figures come from these and from its steps, as they did
when it was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from maitre.errors import InputError, UsageError
from maitre.gpus import find_gpu
from maitre.recording import RecordedRun, Recording, RunRecord, load_recording, recorded_workload
from maitre.records import Cell, ServerConfig
from maitre.simulator.replay import Replay, replay_at_once
from maitre.simulator.rules import SchedulerRules
from maitre.trial.engine import Measurement, Watch
from maitre.trial.measured import measured_run
from maitre.trial.metrics import summarize
from maitre.trial.run import Run, replay_run
from maitre.vllm.defaults import default_cell

WATCH_STEPS = 100
"""Steps between two looks at a run."""


class RecordedEngine:
    """A recording that can be asked like a server."""

    def __init__(self, path: Path) -> None:
        """Read the recording.

        Raises:
            InputError: a file is broken, or requests arrived over time and the runs do not say when.
        """
        self.name = f"recorded:{path}"
        self.recording, runs = load_recording(path)
        self.workload = recorded_workload(self.recording)
        if self.is_open_loop and any(run.requests is None for run in runs):
            raise InputError(
                f"{path}: requests arrived over time, so its schedule cannot be replayed exactly",
                "use a recording with all requests at once",
            )
        self._runs = {run.recorded.cell: run for run in runs if run.recorded.repeat == 0}

    @property
    def is_open_loop(self) -> bool:
        """Whether the requests came at times of their own."""
        return self.workload.arrival_s is not None

    @property
    def cells(self) -> Sequence[Cell]:
        """The recorded cells."""
        return list(self._runs)

    def measure(self, cell: Cell, watch: Watch | None = None) -> Measurement:
        """What the recorded server did at this cell, until `watch` has seen enough.

        Raises:
            UsageError: the cell was not recorded.
            InputError: the replay does not have the recorded steps.
        """
        run = self._runs.get(cell)
        if run is None:
            raise UsageError(f"{cell} was not recorded", f"recorded are {', '.join(map(str, self._runs))}")
        ran = self._replayed(run) if run.requests is None else self._measured(run, run.requests)
        for num_steps in range(WATCH_STEPS, run.num_steps, WATCH_STEPS) if watch else ():
            if watch is not None and watch(run.first(num_steps)):
                return Measurement(None, run.first(num_steps))
        return Measurement(summarize(ran, self.workload, engine=self.name), run)

    def _replayed(self, run: RecordedRun) -> Run:
        rules = recorded_rules(self.recording, run.recorded.cell, run.recorded.num_gpu_blocks)
        replay = replay_at_once(self.workload, rules)
        if not replays_exactly(replay, run):
            raise InputError(
                f"{self.name}, cell {run.recorded.cell}: the recorded schedule ({run.num_steps} steps) is not the one "
                f"that vLLM {self.recording.vllm_version} should make ({replay.num_steps} steps)",
                "was the recording made with other flags than it says?",
            )
        return replay_run(replay, run.step_end_s, self.workload, rules)

    def _measured(self, run: RecordedRun, requests: dict[str, NDArray[np.float64]]) -> Run:
        num_gpu_blocks = run.recorded.num_gpu_blocks or self.recording.num_gpu_blocks
        return measured_run(
            RunRecord(run.columns, requests), self.workload, run.recorded.cell, num_gpu_blocks,
            is_burst=not self.is_open_loop,
        )  # fmt: skip


def recorded_rules(recording: Recording, cell: Cell, num_gpu_blocks: int | None = None) -> SchedulerRules:
    """The rules that the recorded server followed at a cell.

    Args:
        recording: says how it was started.
        cell: the dials.
        num_gpu_blocks: the KV pool of the run, if it is not the recording's.
    """
    server = recording.server
    return SchedulerRules.of_version(
        recording.vllm_version,
        cell,
        num_gpu_blocks or recording.num_gpu_blocks,
        block_size=recording.block_size,
        enable_prefix_caching=server.enable_prefix_caching,
        async_scheduling=server.async_scheduling,
        watermark=server.watermark,
        long_prefill_token_threshold=server.long_prefill_token_threshold,
        priority_policy=server.scheduling_policy == "priority",
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
        dtype=server.dtype,
        kv_cache_dtype=server.kv_cache_dtype,
        tensor_parallel_size=server.tensor_parallel_size,
        watermark=server.watermark,
        long_prefill_token_threshold=server.long_prefill_token_threshold,
        scheduling_policy=server.scheduling_policy,
    )


def nearest_default(recording: Recording, cells: Sequence[Cell]) -> Cell:
    """The recorded cell that is nearest to vLLM's default on that GPU, in doublings of the dials."""
    gpu = find_gpu(recording.gpu.split("(")[0].strip())
    default = default_cell(recording.vllm_version, gpu.name, gpu.memory_bytes, recording.server.max_model_len)

    def distance(cell: Cell) -> float:
        seqs = math.log2(cell.max_num_seqs / default.max_num_seqs)
        return math.hypot(seqs, math.log2(cell.max_num_batched_tokens / default.max_num_batched_tokens))

    return min(cells, key=distance)
