"""Answers from the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import Calibration
from maitre.records import Cell, ServerConfig, Trial, Workload
from maitre.simulator.replay import Replay, replay_arrivals, replay_at_once
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.step_time import StepTime
from maitre.trial.metrics import replay_run, summarize
from maitre.vllm.defaults import capture_sizes

LENGTH_OCTAVES = 2.0
"""How far, in doublings of a dial, the simulator's error stays alike (modelling notes: 1 to 2)."""


class SimulatedEngine:
    """The scheduler's replay with a calibrated step time.

    With `open_loop` requests come at the workload's own times, and each set of coefficients needs a replay; without,
    all are there at once and the schedule is the same for every set.
    """

    name = "simulated"
    cells: Sequence[Cell] | None = None

    def __init__(
        self,
        workload: Workload,
        server: ServerConfig,
        calibration: Calibration,
        num_gpu_blocks: Callable[[Cell], int],
        *,
        open_loop: bool = False,
    ) -> None:
        self.calibration = calibration
        self._workload = workload
        self._server = server
        self._num_gpu_blocks = num_gpu_blocks
        self._open_loop = open_loop
        self._replays: dict[Cell, Replay] = {}

    def run(self, cell: Cell) -> Trial:
        """Simulate one cell."""
        rules, step_time = self._rules(cell), self._step_time(cell)
        replay = self._replay(cell)
        ends = np.cumsum(replay.steps_s(step_time)) if replay.step_end_s is None else replay.step_end_s
        return summarize(replay_run(replay, ends, self._workload, rules), self._workload, engine=self.name)

    def log_time_draws(
        self, cells: Sequence[Cell], num_draws: int, generator: np.random.Generator
    ) -> NDArray[np.float64]:
        """The calibration's uncertainty carried to the cells, shape (num_draws, cells).

        The coefficients are the same in every cell of a draw; what they do not explain is alike in neighbouring cells
        (squared-exponential over the logarithms of the dials). Open loop: the schedule of the central coefficients is
        kept, which holds as long as the server keeps busy.
        """
        coefficients = self.calibration.draw_coefficients(num_draws, generator)
        central = self.calibration.step_time.coefficients
        sums = np.stack([self._replay(cell).features(self._step_time(cell)).sum(axis=0) for cell in cells])
        dials = np.log2([(cell.max_num_seqs, cell.max_num_batched_tokens) for cell in cells])
        distance = np.sum((dials[:, None] - dials) ** 2, axis=-1)
        alike = self.calibration.cell_sd**2 * np.exp(-distance / (2 * LENGTH_OCTAVES**2))
        rest = generator.multivariate_normal(np.zeros(len(cells)), alike, num_draws, method="eigh")
        draws: NDArray[np.float64] = np.log(coefficients @ sums.T) - np.log(sums @ central) + rest
        return draws

    def _replay(self, cell: Cell) -> Replay:
        if cell not in self._replays:
            rules = self._rules(cell)
            if self._open_loop:
                self._replays[cell] = replay_arrivals(self._workload, rules, self._step_time(cell))
            else:
                self._replays[cell] = replay_at_once(self._workload, rules)
        return self._replays[cell]

    def _rules(self, cell: Cell) -> SchedulerRules:
        return SchedulerRules.of_server(self._server.at(cell), self._num_gpu_blocks(cell))

    def _step_time(self, cell: Cell) -> StepTime:
        sizes = capture_sizes(self._server.vllm_version, cell)
        return self.calibration.step_time.model_copy(update={"graph_sizes": sizes})
