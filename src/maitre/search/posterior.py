"""What is known of all cells at once: the simulator's surface, corrected by what was measured.

The time of run r in its window w, at cell c:

    log t_rw = log(X_rw θ) + δ_c + η_r + e_rw

X_rw is what its steps computed, and θ are the coefficients of the step time (lognormal prior). δ_c is what they do not
explain at a cell (a process over the dials), η_r is what differs from run to run, and e_rw is the windows' noise. The
whole workload then takes

    log T_c = log(S_c θ) + σ_c + δ_c

S_c is the simulator's schedule, and σ_c is how far the server's is from it: known where a cell was measured, elsewhere
a process as large as the schedules were off so far. The model is linearised in log θ around its most likely value,
which makes all of it jointly normal; nothing is counted twice: θ and δ are learned from the same windows together.

How large δ and η are is not known. Each pair of sizes is a component of a mixture, weighted by how well it foretold
each run from those before it. A few components do not believe in the simulator at all: a constant surface plus a
process. If the simulator is wrong, they gain the weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

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
PRIOR_SD = np.array([0.3, 1.0, 0.3, 1.0, 0.3, 0.5, 1.0])
COMMON_SD = 0.3
"""Spread of log θ beyond what the prior says of itself: of each coefficient on its own, and of all together."""

CELL_SDS = (0.005, 0.01, 0.02, 0.05, 0.15)
CELL_WEIGHTS = (0.35, 0.45, 0.18, 0.015, 0.005)
"""Sizes of δ, and how likely they are: 1 to 2 % was seen on the recordings (`benchmarks/step_time.py`)."""
RUN_SDS = (0.005, 0.01, 0.02, 0.04)
RUN_WEIGHTS = (0.45, 0.35, 0.15, 0.05)
"""Sizes of η: 0 to 1 % was seen on an H200 that did nothing else, where the windows' noise was up to `EVEN_SD`."""
EVEN_SD = 0.02
"""Where the windows' noise is larger, so is η in proportion: a machine that is uneven from second to second is uneven
from run to run. 13 % of noise went with η of 16 % where the host was too slow for a small model on an H200."""
LENGTHS = (1.0, 2.0)
"""How far, in doublings of a dial, δ stays alike."""
DOUBT_SDS, DOUBT_WEIGHT = (0.1, 0.3), 0.01
"""Components without the simulator: sizes of their process, and how likely they are together."""
MEAN_SD = 1.0
"""Spread of such a component's mean around the first run."""
SHORT_RUN_SD = 0.05
"""How far the rest of a run that was cut short differs from what the simulator makes of it."""

SCHEDULE_LENGTHS = (1.0, 4.0)
"""How far, in doublings of each dial, σ stays alike: a pool that is smaller than believed overflows from one number of
slots on, whatever the token budget."""
SCHEDULE_SD = 0.001
"""How far the schedules of two runs of a cell differ."""

FIT_CELL_SD, FIT_RUN_SD, FIT_LENGTH = 0.02, 0.01, 2.0
"""Sizes for finding the most likely step time; it hardly depends on them."""
MAX_ITERATIONS = 30
LARGEST_MOVE, LEAST_MOVE = 1.0, 1e-3
"""Of the logarithm of a coefficient in one iteration; below the second it is found."""


@dataclass(frozen=True, slots=True, eq=False)
class _Component:
    """One pair of sizes of δ and η, and what it says of the log-times, given all runs."""

    log_weight: float
    surface: Gaussian
    uses_simulator: bool


class Posterior:
    """The log-times of all cells, given the runs so far."""

    def __init__(
        self, surface: ReplayedSurface, prior: Calibration, cells: Sequence[Cell], runs: Sequence[Evidence]
    ) -> None:
        """Learn from the runs.

        Args:
            surface: the simulator.
            prior: what is known of the step time before anything is measured.
            cells: the surface.
            runs: what was measured, in order; none is fine.
        """
        self.cells = tuple(cells)
        self._position = {cell: i for i, cell in enumerate(self.cells)}
        self._runs = tuple(runs)
        self._features = surface.features(self.cells)
        self._spread = np.array(prior.covariance) + np.diag(PRIOR_SD**2) + COMMON_SD**2
        self._log_prior = np.log(np.maximum(prior.step_time.coefficients, 1e-12))
        self._fit()
        self._components = tuple(self._all_components())

    @property
    def coefficients(self) -> Array:
        """The most likely step time, shape (7,)."""
        return np.exp(self._log_theta)

    @property
    def simulated_log_times(self) -> Array:
        """What the simulator says with it, in log seconds, shape (cells,)."""
        return np.log(self._features @ self.coefficients)

    @property
    def weights(self) -> Array:
        """How likely each component is, shape (components,)."""
        logs = np.array([component.log_weight for component in self._components])
        shares: Array = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
        return shares

    @property
    def trust(self) -> float:
        """How likely it is that the simulator explains what was measured, 0 to 1."""
        uses = np.array([component.uses_simulator for component in self._components])
        return float(self.weights[uses].sum())

    @property
    def mean(self) -> Array:
        """Of the log-times, shape (cells,)."""
        mean: Array = self.weights @ np.array([component.surface.mean for component in self._components])
        return mean

    def draws(self, num_draws: int, generator: np.random.Generator) -> Array:
        """Surfaces that are as likely as each other, in log seconds, shape (num_draws, cells)."""
        shares = generator.multinomial(num_draws, self.weights)
        parts = [
            component.surface.draws(int(share), generator)
            for component, share in zip(self._components, shares, strict=True)
            if share
        ]
        return np.concatenate(parts)

    @property
    def parameters(self) -> Gaussian:
        """Of (log θ − log θ̂, δ) for middling sizes of δ and η, shape (7 + cells,)."""
        return self._state

    def covariance_after(self, run: Evidence | None) -> Array:
        """The covariance of the log-times for middling sizes of δ and η, shape (cells, cells).

        Args:
            run: one more run; what times it has does not matter.
        """
        if run is None:
            return self._image(self._state).plus(self._schedules[-1]).covariance
        schedule = self._schedules[-1].given(self._schedule_of(run))
        return self._image(self._state.given(self._windows(run, FIT_RUN_SD))).plus(schedule).covariance

    # the model

    @property
    def _unevenness(self) -> float:
        return max(1.0, self._window_sd / EVEN_SD)

    def _fit(self) -> None:
        """Find the most likely step time, around which the model is linear (Gauss–Newton), and the windows' noise."""
        self._log_theta, self._window_sd = self._log_prior, WINDOW_SD
        self._state = self._after_all()
        move, limit = np.zeros(7), np.full(7, LARGEST_MOVE)
        for _ in range(MAX_ITERATIONS if self._runs else 0):
            limit = np.where(self._state.mean[:7] * move < 0, limit / 2, limit)  # to and fro: go half as far
            move = np.clip(self._state.mean[:7], -limit, limit)
            self._log_theta = self._log_theta + move
            self._window_sd = self._misfit()
            self._state = self._after_all()
            if np.abs(move).max() < LEAST_MOVE:
                break
        self._schedules = self._all_schedules()

    def _after_all(self) -> Gaussian:
        state = self._prior(FIT_CELL_SD, FIT_LENGTH)
        for run in self._runs:
            state = state.given(self._windows(run, FIT_RUN_SD))
        return state

    def _misfit(self) -> float:
        misfits = np.concatenate([_around_mean(run.log_excess(self.coefficients)) for run in self._runs])
        return max(WINDOW_SD, float(np.sqrt(np.mean(misfits**2))))

    def _all_schedules(self) -> list[Gaussian]:
        """σ after 0, 1, … runs."""
        seen = [run.log_schedule(self.coefficients) for run in self._runs]
        size = float(np.sqrt(np.mean(np.square(seen)))) if seen else 0.0
        schedules = [Gaussian(np.zeros(len(self.cells)), dial_covariance(self.cells, size, SCHEDULE_LENGTHS))]
        for run in self._runs:
            schedules.append(schedules[-1].given(self._schedule_of(run)))
        return schedules

    def _all_components(self) -> Iterator[_Component]:
        sizes = product(zip(CELL_SDS, CELL_WEIGHTS, strict=True), zip(RUN_SDS, RUN_WEIGHTS, strict=True), LENGTHS)
        for (cell_sd, cell_weight), (run_sd, run_weight), length in sizes:
            weight = (1 - DOUBT_WEIGHT) * cell_weight * run_weight / len(LENGTHS)
            yield self._with_simulator(float(np.log(weight)), cell_sd, run_sd, length)
        doubts = product(DOUBT_SDS, zip(RUN_SDS, RUN_WEIGHTS, strict=True), LENGTHS)
        for cell_sd, (run_sd, run_weight), length in doubts:
            weight = DOUBT_WEIGHT * run_weight / (len(LENGTHS) * len(DOUBT_SDS))
            yield self._without_simulator(float(np.log(weight)), cell_sd, run_sd, length)

    def _with_simulator(self, log_weight: float, cell_sd: float, run_sd: float, length: float) -> _Component:
        state = self._prior(cell_sd, length)
        for number, run in enumerate(self._runs):
            if number:  # how far the prior was off at the first run says nothing about δ and η
                log_weight += state.log_density(self._total(run, run_sd, self._schedules[number]))
            state = state.given(self._windows(run, run_sd))
        return _Component(log_weight, self._image(state).plus(self._schedules[-1]), uses_simulator=True)

    def _without_simulator(self, log_weight: float, cell_sd: float, run_sd: float, length: float) -> _Component:
        first = self._whole_log_time(self._runs[0]) if self._runs else float(self.simulated_log_times.mean())
        covariance = dial_covariance(self.cells, cell_sd, length) + MEAN_SD**2
        surface = Gaussian(np.full(len(self.cells), first), covariance)
        for number, run in enumerate(self._runs):
            design = np.eye(len(self.cells))[[self._position[run.cell]]]
            noise = (run_sd * self._unevenness) ** 2 + (0 if run.is_complete else SHORT_RUN_SD**2)
            seen = Observation(design, np.array([self._whole_log_time(run)]), np.array([[noise]]))
            if number:
                log_weight += surface.log_density(seen)
            surface = surface.given(seen)
        return _Component(log_weight, surface, uses_simulator=False)

    def _prior(self, cell_sd: float, length: float) -> Gaussian:
        """Of (log θ − log θ̂, δ)."""
        num_cells = len(self.cells)
        covariance = np.zeros((7 + num_cells, 7 + num_cells))
        covariance[:7, :7] = self._spread
        covariance[7:, 7:] = dial_covariance(self.cells, cell_sd, length) + flag_covariance(self.cells)
        return Gaussian(np.concatenate([self._log_prior - self._log_theta, np.zeros(num_cells)]), covariance)

    def _image(self, state: Gaussian) -> Gaussian:
        """The log-times of all cells, from (log θ − log θ̂, δ)."""
        design = np.hstack([_slope(self._features, self.coefficients), np.eye(len(self.cells))])
        return state.image(design, self.simulated_log_times)

    # the runs

    def _windows(self, run: Evidence, run_sd: float) -> Observation:
        """The windows of a run, reduced to the eight numbers that matter."""
        basis, reduced = np.linalg.qr(
            np.hstack([_slope(run.features, self.coefficients), np.ones((len(run.seconds), 1))])
        )
        design = self._design(reduced[:, :7], reduced[:, 7], run.cell)
        window_variance = self._window_sd**2 * min(WINDOWS_ALIKE, len(run.seconds))
        run_variance = (run_sd * self._unevenness) ** 2
        noise = window_variance * np.eye(len(reduced)) + run_variance * np.outer(reduced[:, 7], reduced[:, 7])
        return Observation(design, basis.T @ run.log_excess(self.coefficients), noise)

    def _total(self, run: Evidence, run_sd: float, schedule: Gaussian) -> Observation:
        """The time of a run as a whole, from which the schedule is still to come."""
        cell = self._position[run.cell]
        design = self._design(_slope(run.simulated[None], self.coefficients), np.ones(1), run.cell)
        noise = self._window_sd**2 * min(WINDOWS_ALIKE / len(run.seconds), 1) + (run_sd * self._unevenness) ** 2
        excess = run.total_log_excess(self.coefficients) - schedule.mean[cell]
        return Observation(design, np.array([excess]), np.array([[noise + schedule.covariance[cell, cell]]]))

    def _schedule_of(self, run: Evidence) -> Observation:
        """How far its schedule was from the simulator's."""
        noise = SCHEDULE_SD**2 + (0 if run.is_complete else SHORT_RUN_SD**2)
        design = np.eye(len(self.cells))[[self._position[run.cell]]]
        return Observation(design, np.array([run.log_schedule(self.coefficients)]), np.array([[noise]]))

    def _design(self, slope: Array, of_cell: Array, cell: Cell) -> Array:
        design = np.zeros((len(slope), 7 + len(self.cells)))
        design[:, :7] = slope
        design[:, 7 + self._position[cell]] = of_cell
        return design

    def _whole_log_time(self, run: Evidence) -> float:
        """Of the whole workload at the run's cell; a run that was cut short is extrapolated by the simulator."""
        return float(self.simulated_log_times[self._position[run.cell]]) + run.total_log_excess(self.coefficients)


def _slope(features: Array, coefficients: Array) -> Array:
    """How log(X θ) changes with log θ, shape (rows, 7)."""
    slope: Array = features * coefficients / (features @ coefficients)[:, None]
    return slope


def _around_mean(values: Array) -> Array:
    centred: Array = values - values.mean()
    return centred
