"""Answers from the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import Calibration
from maitre.calibration.doubt import draw_cell_offsets
from maitre.records import Cell, ServerConfig, Trial, Workload
from maitre.simulator.replay import Replay, replay_arrivals
from maitre.simulator.step_time import StepTime
from maitre.simulator.surface import Factors, ReplayedSurface, no_factors
from maitre.trial.metrics import summarize
from maitre.trial.run import replay_run


class SimulatedEngine:
    """The scheduler's replay with a calibrated step time.

    With `open_loop` requests come at the workload's own times, and each set of coefficients needs a replay; without,
    all are there at once and the schedule is the same for every set.
    """

    name = "simulated"

    def __init__(
        self,
        workload: Workload,
        server: ServerConfig,
        calibration: Calibration,
        num_gpu_blocks: Callable[[Cell], int],
        *,
        open_loop: bool = False,
        factors: Factors = no_factors,
    ) -> None:
        """Prepare.

        Args:
            workload: the traffic.
            server: its scheduler's settings.
            calibration: how long steps take, and how far to trust it.
            num_gpu_blocks: the KV pool at a cell.
            open_loop: requests come at the workload's own times.
            factors: by what the coefficients of the step time are multiplied at a cell with other flags.
        """
        self.calibration = calibration
        self._workload = workload
        self._surface = ReplayedSurface(workload, server, calibration.step_time, num_gpu_blocks, factors=factors)
        self._arrivals: dict[Cell, Replay] | None = {} if open_loop else None

    def run(self, cell: Cell) -> Trial:
        """Simulate one cell."""
        replay, rules = self._replay(cell), self._surface.rules(cell)
        if replay.step_end_s is None:
            return simulated_trial(self._surface, cell, self._surface.step_time(cell))
        run = replay_run(replay, replay.step_end_s, self._workload, rules)
        return summarize(run, self._workload, engine=self.name).model_copy(update={"flags": cell.flags})

    def log_time_draws(
        self, cells: Sequence[Cell], num_draws: int, generator: np.random.Generator
    ) -> NDArray[np.float64]:
        """The calibration's uncertainty carried to the cells, shape (num_draws, cells).

        The coefficients are the same in every cell of a draw; what they do not explain is alike in neighbouring cells.
        Open loop: the schedule of the central coefficients is kept, which holds as long as the server keeps busy.
        """
        coefficients = self.calibration.draw_coefficients(num_draws, generator)
        central = self.calibration.step_time.coefficients
        sums = np.stack([self._features(cell) for cell in cells])
        rest = draw_cell_offsets(cells, self.calibration.cell_sd, num_draws, generator)
        draws: NDArray[np.float64] = np.log(coefficients @ sums.T) - np.log(sums @ central) + rest
        return draws

    def _features(self, cell: Cell) -> NDArray[np.float64]:
        sums = self._replay(cell).features(self._surface.step_time(cell)).sum(axis=0)
        features: NDArray[np.float64] = sums * self._surface.factors(cell)
        return features

    def _replay(self, cell: Cell) -> Replay:
        if self._arrivals is None:
            return self._surface.replay(cell)
        if cell not in self._arrivals:
            rules, step_time = self._surface.rules(cell), self._surface.step_time(cell)
            self._arrivals[cell] = replay_arrivals(self._workload, rules, step_time)
        return self._arrivals[cell]


def simulated_trial(
    surface: ReplayedSurface, cell: Cell, step_time: StepTime, *, duration_s: float | None = None
) -> Trial:
    """The figures of a cell with all requests at once.

    Args:
        surface: its schedules.
        cell: the dials.
        step_time: how long steps take, with the CUDA graphs of the cell.
        duration_s: how long the whole run took or is known to take, if that is known better: every step is then longer
            or shorter by the same share.
    """
    replay = surface.replay(cell)
    step_end_s = np.cumsum(replay.steps_s(step_time))
    if duration_s is not None:
        step_end_s *= duration_s / step_end_s[-1]
    run = replay_run(replay, step_end_s, surface.workload, surface.rules(cell))
    return summarize(run, surface.workload, engine=SimulatedEngine.name).model_copy(update={"flags": cell.flags})
