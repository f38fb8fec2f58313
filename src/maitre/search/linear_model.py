"""Times of runs and cells as linear functions of what is not known.

The time of run r in its window w, at cell c:

    log t_rw = log(X_rw θ) + δ_c + η_r + e_rw

X_rw is what its steps computed, and θ are the coefficients of the step time (lognormal prior). δ_c is what they do not
explain at a cell (a process over the dials), η_r is what differs from run to run, and e_rw is the windows' noise. The
whole workload then takes

    log T_c = log(S_c θ) + σ_c + δ_c

S_c is the simulator's schedule, and σ_c is how far the server's is from it: known where a cell was measured, elsewhere
a process as large as the schedules were off so far. The model is linearised in log θ around its most likely value,
which makes all of it jointly normal; nothing is counted twice: θ and δ are learned from the same windows together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from maitre.calibration import Calibration
from maitre.calibration.flags import flag_covariance
from maitre.records import Cell
from maitre.search.dial_process import dial_covariance
from maitre.search.evidence import Evidence
from maitre.search.gaussian import Array, Gaussian, Observation
from maitre.simulator.surface import ReplayedSurface

WINDOW_SD = 0.01
"""Relative noise of a window's time; larger if the windows fit worse."""
WINDOWS_ALIKE = 8.0
"""Neighbouring windows err alike: this many count as one."""
EVEN_SD = 0.02
"""Where neighbouring windows differ more than this, η is larger in proportion: a machine that is uneven from second to
second is uneven from run to run. On an H200 that did nothing else 2 % of noise went with η of up to 1 %, and 10 % with
16 % where the host was too slow for a small model."""
PRIOR_SD = np.array([0.3, 1.0, 0.3, 1.0, 0.3, 0.5, 1.0])
COMMON_SD = 0.3
"""Spread of log θ beyond what the prior says of itself: of each coefficient on its own, and of all together."""

SCHEDULE_LENGTHS = (1.0, 4.0)
"""How far, in doublings of each dial, σ stays alike: a pool that is smaller than believed overflows from one number of
slots on, whatever the token budget."""
SCHEDULE_SD = 0.001
"""How far the schedules of two runs of a cell differ."""
SHORT_RUN_SD = 0.05
"""How far the rest of a run that was cut short differs from what the simulator makes of it."""

FIT_CELL_SD, FIT_RUN_SD, FIT_LENGTH = 0.02, 0.01, 2.0
"""Sizes of δ and η for finding the most likely step time; it hardly depends on them."""
MAX_ITERATIONS = 30
LARGEST_MOVE, LEAST_MOVE = 1.0, 1e-3
"""Of the logarithm of a coefficient in one iteration; below the second it is found."""


class LinearModel:
    """The model around the most likely step time, given all runs."""

    def __init__(
        self, surface: ReplayedSurface, prior: Calibration, cells: Sequence[Cell], runs: Sequence[Evidence]
    ) -> None:
        """Find the most likely step time.

        Args:
            surface: the simulator.
            prior: what is known of the step time before anything is measured.
            cells: the surface.
            runs: what was measured, in order; none is fine.
        """
        self.cells = tuple(cells)
        self.position = {cell: i for i, cell in enumerate(self.cells)}
        self._runs = tuple(runs)
        self._features = surface.features(self.cells)
        self._spread = np.array(prior.covariance) + np.diag(PRIOR_SD**2) + COMMON_SD**2
        self._log_prior = np.log(np.maximum(prior.step_time.coefficients, 1e-12))
        self._fit()
        self.schedules = self._all_schedules()
        """σ after 0, 1, … runs."""

    @property
    def coefficients(self) -> Array:
        """The most likely step time, shape (7,)."""
        return np.exp(self._log_theta)

    @property
    def simulated_log_times(self) -> Array:
        """What the simulator says with it, in log seconds, shape (cells,)."""
        return np.log(self._features @ self.coefficients)

    # what is not known

    def prior(self, cell_sd: float, length: float) -> Gaussian:
        """Of (log θ − log θ̂, δ), shape (7 + cells,)."""
        num_cells = len(self.cells)
        covariance = np.zeros((7 + num_cells, 7 + num_cells))
        covariance[:7, :7] = self._spread
        covariance[7:, 7:] = dial_covariance(self.cells, cell_sd, length) + flag_covariance(self.cells)
        return Gaussian(np.concatenate([self._log_prior - self._log_theta, np.zeros(num_cells)]), covariance)

    def log_times(self, state: Gaussian, schedule: Gaussian) -> Gaussian:
        """Of all cells, from (log θ − log θ̂, δ) and σ."""
        design = np.hstack([_slope(self._features, self.coefficients), np.eye(len(self.cells))])
        return state.image(design, self.simulated_log_times).plus(schedule)

    # what runs say of it

    def windows(self, run: Evidence, run_sd: float) -> Observation:
        """The windows of a run, reduced to the eight numbers that matter."""
        rows = np.hstack([_slope(run.features, self.coefficients), np.ones((len(run.seconds), 1))])
        basis, reduced = np.linalg.qr(rows)
        design = self._design(reduced[:, :7], reduced[:, 7], run.cell)
        window_variance = self._window_sd**2 * min(WINDOWS_ALIKE, len(run.seconds))
        run_variance = (run_sd * self.unevenness) ** 2
        noise = window_variance * np.eye(len(reduced)) + run_variance * np.outer(reduced[:, 7], reduced[:, 7])
        return Observation(design, basis.T @ run.log_excess(self.coefficients), noise)

    def total(self, run: Evidence, run_sd: float, schedule: Gaussian) -> Observation:
        """The time of a run as a whole, when its schedule is not known yet."""
        cell = self.position[run.cell]
        design = self._design(_slope(run.simulated[None], self.coefficients), np.ones(1), run.cell)
        noise = self._window_sd**2 * min(WINDOWS_ALIKE / len(run.seconds), 1) + (run_sd * self.unevenness) ** 2
        excess = run.total_log_excess(self.coefficients) - schedule.mean[cell]
        return Observation(design, np.array([excess]), np.array([[noise + schedule.covariance[cell, cell]]]))

    def schedule_of(self, run: Evidence) -> Observation:
        """How far its schedule was from the simulator's."""
        noise = SCHEDULE_SD**2 + (0 if run.is_complete else SHORT_RUN_SD**2)
        return self.at_cell(run.cell, run.log_schedule(self.coefficients), noise)

    def at_cell(self, cell: Cell, value: float, variance: float) -> Observation:
        """Of something that each cell has one of."""
        return Observation(np.eye(len(self.cells))[[self.position[cell]]], np.array([value]), np.array([[variance]]))

    def whole_log_time(self, run: Evidence) -> float:
        """Of the whole workload at the run's cell; a run that was cut short is extrapolated by the simulator."""
        return float(self.simulated_log_times[self.position[run.cell]]) + run.total_log_excess(self.coefficients)

    def _design(self, slope: Array, of_cell: Array, cell: Cell) -> Array:
        design = np.zeros((len(slope), 7 + len(self.cells)))
        design[:, :7] = slope
        design[:, 7 + self.position[cell]] = of_cell
        return design

    # the most likely step time

    def _fit(self) -> None:
        """Gauss–Newton; also finds how noisy the windows are."""
        self._log_theta, self._window_sd = self._log_prior, WINDOW_SD
        self.unevenness = 1.0
        """How many times as large as usual η is."""
        self.state = self._after_all()
        """Of (log θ − log θ̂, δ) for middling sizes of δ and η, shape (7 + cells,)."""
        move, limit = np.zeros(7), np.full(7, LARGEST_MOVE)
        for _ in range(MAX_ITERATIONS if self._runs else 0):
            limit = np.where(self.state.mean[:7] * move < 0, limit / 2, limit)  # to and fro: go half as far
            move = np.clip(self.state.mean[:7], -limit, limit)
            self._log_theta = self._log_theta + move
            self._window_sd, self.unevenness = self._noise()
            self.state = self._after_all()
            if np.abs(move).max() < LEAST_MOVE:
                break

    def _after_all(self) -> Gaussian:
        state = self.prior(FIT_CELL_SD, FIT_LENGTH)
        for run in self._runs:
            state = state.given(self.windows(run, FIT_RUN_SD))
        return state

    def _noise(self) -> tuple[float, float]:
        """By the misfit of the windows, and by what differs between neighbours: the steps fit them equally well."""
        excesses = [run.log_excess(self.coefficients) for run in self._runs]
        misfit = _root_mean_square(np.concatenate([excess - excess.mean() for excess in excesses]))
        jitter = _root_mean_square(np.concatenate([np.diff(excess) for excess in excesses])) / np.sqrt(2)
        return max(WINDOW_SD, misfit), max(1.0, jitter / EVEN_SD)

    def _all_schedules(self) -> list[Gaussian]:
        size = _root_mean_square(np.array([run.log_schedule(self.coefficients) for run in self._runs]))
        schedules = [Gaussian(np.zeros(len(self.cells)), dial_covariance(self.cells, size, SCHEDULE_LENGTHS))]
        for run in self._runs:
            schedules.append(schedules[-1].given(self.schedule_of(run)))
        return schedules


def _slope(features: Array, coefficients: Array) -> Array:
    """How log(X θ) changes with log θ, shape (rows, 7)."""
    slope: Array = features * coefficients / (features @ coefficients)[:, None]
    return slope


def _root_mean_square(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2))) if len(values) else 0.0
