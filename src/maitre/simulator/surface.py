"""The schedules of all cells, each replayed once.

All requests are there at once, so the schedule of a cell does not depend on how long steps take, and every set of
coefficients of the step time costs one dot product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from maitre.recording import StepRecord
from maitre.records import Cell, ServerConfig, Workload
from maitre.simulator.replay import Replay, replay_at_once
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.step_time import StepTime, step_features
from maitre.vllm.defaults import capture_sizes


class ReplayedSurface:
    """Replays each cell once, and hands out the sums that the step time's coefficients are multiplied by."""

    def __init__(
        self,
        workload: Workload,
        server: ServerConfig,
        step_time: StepTime,
        num_gpu_blocks: Callable[[Cell], int],
        *,
        started_at: Cell | None = None,
    ) -> None:
        """Prepare; a cell is replayed when it is first asked for.

        Args:
            workload: the requests, all there at once.
            server: its scheduler's settings; the dials are taken from each cell.
            step_time: its coefficients; the CUDA graphs are taken from each cell.
            num_gpu_blocks: the KV pool at a cell.
            started_at: the dials that the server was started with, where they are turned live: its CUDA graphs are
                captured for these; None when it is started afresh for every cell.
        """
        self.workload = workload
        self._step_time = step_time
        self._server = server
        self._num_gpu_blocks = num_gpu_blocks
        self._started_at = started_at
        self._replays: dict[Cell, Replay] = {}

    def replay(self, cell: Cell) -> Replay:
        """The schedule of the whole workload.

        Raises:
            DoesNotFitError: a request is larger than the KV pool.
        """
        if cell not in self._replays:
            self._replays[cell] = replay_at_once(self.workload, self.rules(cell))
        return self._replays[cell]

    def rules(self, cell: Cell) -> SchedulerRules:
        """The scheduler's settings at a cell."""
        return SchedulerRules.of_server(self._server.at(cell), self._num_gpu_blocks(cell))

    def step_time(self, cell: Cell) -> StepTime:
        """The step time with the CUDA graphs that the server has at a cell."""
        sizes = capture_sizes(self._server.vllm_version, self._started_at or cell)
        return self._step_time.model_copy(update={"graph_sizes": sizes})

    def features(self, cells: Sequence[Cell]) -> NDArray[np.float64]:
        """What each coefficient is multiplied by over the whole run of each cell, shape (cells, 7)."""
        return np.stack([self.replay(cell).features(self.step_time(cell)).sum(axis=0) for cell in cells])

    def features_until(self, cell: Cell, num_output_tokens: float) -> NDArray[np.float64]:
        """The same until the decodes have made so many output tokens, shape (7,)."""
        replay = self.replay(cell)
        num_steps = int(np.searchsorted(np.cumsum(replay.columns["num_decodes"]), num_output_tokens)) + 1
        sums: NDArray[np.float64] = replay.features(self.step_time(cell))[:num_steps].sum(axis=0)
        return sums

    def features_of(self, cell: Cell, steps: StepRecord) -> NDArray[np.float64]:
        """What each coefficient is multiplied by in each measured step, shape (steps, 7)."""
        step_time = self.step_time(cell)
        return step_features(steps.columns, step_time.knee, step_time.graph_sizes)
