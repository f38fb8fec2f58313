"""Surfaces that answer like a server: the time of every cell is known, and every run of it is noisy.

Recorded surfaces answer with the steps of an H200. Simulated ones answer with the simulator's, and `scenarios.py` draws
how far their step time is from what a search believes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import Calibration, fit_step_time, roofline_prior
from maitre.calibration.fit import WINDOW_STEPS, window_sums
from maitre.gpus import Gpu, find_gpu
from maitre.kv_budget import estimate_kv_budget
from maitre.models import load_model
from maitre.recording import StepRecord, load_recording, recorded_workload
from maitre.records import Cell, FailedTrial, ServerConfig, Workload
from maitre.search import classical_grid
from maitre.search.strategy import Told
from maitre.simulator.replay import replay_at_once
from maitre.simulator.rules import SchedulerRules
from maitre.trial.recorded import WATCH_STEPS, nearest_default, recorded_server
from maitre.trial.replay_check import recorded_prior
from maitre.vllm.defaults import capture_sizes, default_cell
from maitre.workload import load_workload

RECORDINGS = Path(__file__).parent.parent / "tests/data/recordings"
GRIDS_14B = ("qwen2.5-14b-fixed-512-256", "qwen2.5-14b-fixed-512-256-kv4521", "qwen2.5-14b-lognormal-kv4521")

Array = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Context:
    """What a search may know before anything is measured."""

    workload: Workload
    server: ServerConfig
    """With the dials that it was started with: those of the largest cell, turned down live."""
    num_gpu_blocks: int
    """The KV pool as it is believed to be."""
    prior: Calibration


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """How runs of one cell differ."""

    run_sd: float
    """Standard deviation of the logarithm of a run's time."""
    jitter: Array
    """What the windows of `WINDOW_STEPS` steps are off by, relative; drawn with replacement."""
    slow_share: float = 0.0
    """Share of the runs that something else on the machine slows down …"""
    slow_by: float = 0.1
    """… by so much."""

    def factors(self, num_steps: int, generator: np.random.Generator) -> Array:
        """What the steps of one run are multiplied by, shape (num_steps,)."""
        run = np.exp(generator.normal(0.0, self.run_sd))
        if generator.random() < self.slow_share:
            run *= 1 + self.slow_by
        windows = generator.choice(self.jitter, num_steps // WINDOW_STEPS + 1)
        factors: Array = run * (1 + np.repeat(windows, WINDOW_STEPS)[:num_steps])
        return factors


@dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """A grid of cells, the truth about each, and what is believed of it."""

    baseline: Cell
    columns: Mapping[Cell, Columns]
    """What each step of each cell computes, arrays of shape (steps,)."""
    steps_s: Mapping[Cell, Array]
    """How long each step takes, shape (steps,)."""
    context: Context
    crashing: frozenset[Cell] = frozenset()
    """Cells at which the server dies."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The grid."""
        return tuple(self.steps_s)

    def duration_s(self, cell: Cell) -> float:
        """The truth: seconds of the whole workload."""
        return np.inf if cell in self.crashing else float(self.steps_s[cell].sum())

    def regret(self, cell: Cell) -> float:
        """Share of the best cell's throughput that this cell does not reach, 0 to 1."""
        return 1 - min(self.duration_s(c) for c in self.cells) / self.duration_s(cell)

    def run(
        self, cell: Cell, noise: Noise, watch: Callable[[StepRecord], bool], generator: np.random.Generator
    ) -> Told:
        """One run, cut short once `watch` has seen enough."""
        if cell in self.crashing:
            dead = FailedTrial(**cell.model_dump(), engine="surface", code="crash", message="it died", remedy="")
            return Told(cell, None, failed=dead)
        steps_s = self.steps_s[cell] * noise.factors(len(self.steps_s[cell]), generator)
        steps = StepRecord({**self.columns[cell], "output_end_s": np.cumsum(steps_s)})
        for num_steps in range(WATCH_STEPS, steps.num_steps, WATCH_STEPS):
            if watch(steps.first(num_steps)):
                return Told(cell, None, steps.first(num_steps))
        return Told(cell, float(steps.step_end_s[-1]), steps)


@cache
def recorded_surface(name: str) -> Surface:
    """The cells of a recording of real vLLM, as they were measured."""
    recording, runs = load_recording(RECORDINGS / f"{name}.json")
    steps_s = {run.recorded.cell: run.steps_s for run in runs}
    columns = {
        run.recorded.cell: {key: values for key, values in run.columns.items() if not key.endswith("_s")}
        for run in runs
    }
    server = recorded_server(recording)
    context = Context(recorded_workload(recording), server, recording.num_gpu_blocks, recorded_prior(recording))
    return Surface(nearest_default(recording, list(steps_s)), columns, steps_s, context)


@cache
def simulated_surface(model_name: str, gpu_name: str, spec: str, num_requests: int) -> Surface:
    """The classical grid of any model, GPU and workload; as fast as the prior says."""
    model, gpu, cells = load_model(model_name), find_gpu(gpu_name), classical_grid()
    largest = Cell(
        max_num_seqs=max(cell.max_num_seqs for cell in cells),
        max_num_batched_tokens=max(cell.max_num_batched_tokens for cell in cells),
    )
    server = ServerConfig(model=model.name, vllm_version="0.32.0", max_model_len=16384, **largest.model_dump())
    budget = estimate_kv_budget(model, gpu, server)
    prior = roofline_prior(model, gpu, server, budget.kv_bytes_per_token or 0)
    sizes = capture_sizes(server.vllm_version, largest)
    prior = prior.model_copy(update={"step_time": prior.step_time.model_copy(update={"graph_sizes": sizes})})
    workload = load_workload(spec, num_requests=num_requests)
    columns = {
        cell: replay_at_once(workload, SchedulerRules.of_server(server.at(cell), budget.num_gpu_blocks)).columns
        for cell in cells
    }
    steps_s = {cell: prior.step_time.steps_s(dict(columns[cell])) for cell in cells}
    context = Context(workload, server, budget.num_gpu_blocks, prior)
    return Surface(_default_on(gpu, server, cells), columns, steps_s, context)


@cache
def window_jitter() -> Array:
    """How far windows of 32 steps are off on the H200, relative.

    Half differences of neighbouring windows, so that what a window takes by its work cancels out: over √2, they have
    the spread of a single window.
    """
    jitter = []
    for name in GRIDS_14B:
        recording, runs = load_recording(RECORDINGS / f"{name}.json")
        prior = recorded_prior(recording)
        for run in runs:
            step_time = fit_step_time([run], prior, name).step_time
            features, seconds = window_sums([run], step_time)
            ratios = seconds / (features @ step_time.coefficients)
            jitter.append(np.diff(ratios) / np.sqrt(2))
    pooled = np.concatenate(jitter)
    return np.concatenate([pooled, -pooled])


def seed_of(*parts: object) -> list[int]:
    """A seed that is the same in every process, from words and numbers."""
    return [part if isinstance(part, int) else zlib.crc32(str(part).encode()) for part in parts]


def _default_on(gpu: Gpu, server: ServerConfig, cells: list[Cell]) -> Cell:
    """The cell that is nearest to vLLM's default, in doublings of the dials."""
    default = default_cell(server.vllm_version, gpu.name, gpu.memory_bytes, server.max_model_len)

    def distance(cell: Cell) -> float:
        seqs = np.log2(cell.max_num_seqs / default.max_num_seqs)
        return float(np.hypot(seqs, np.log2(cell.max_num_batched_tokens / default.max_num_batched_tokens)))

    return min(cells, key=distance)
