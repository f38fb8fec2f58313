"""What is known of all cells at once: the simulator's surface, corrected by what was measured.

With given sizes of δ (what the step time does not explain at a cell) and η (what differs from run to run) all is
jointly normal: `maitre.search.linear_model`. How large they are is not known. Each pair of sizes is a component of a
mixture, weighted by how well it foretold each run from those before it. A few components do not believe in the
simulator at all: a constant surface plus a process. If the simulator is wrong, they gain the weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from maitre.calibration import Calibration
from maitre.records import Cell
from maitre.search.dial_process import dial_covariance
from maitre.search.evidence import Evidence
from maitre.search.gaussian import Array, Gaussian, Observation
from maitre.search.linear_model import SHORT_RUN_SD, LinearModel
from maitre.simulator.surface import ReplayedSurface

CELL_SDS = (0.005, 0.01, 0.02, 0.05, 0.15)
CELL_WEIGHTS = (0.35, 0.45, 0.18, 0.015, 0.005)
"""Sizes of δ, and how likely they are: 1 to 2 % was seen on the recordings (`benchmarks/step_time.py`)."""
RUN_SDS = (0.005, 0.01, 0.02, 0.04)
RUN_WEIGHTS = (0.45, 0.35, 0.15, 0.05)
"""Sizes of η on an even machine: 0 to 1 % was seen on an H200 that did nothing else."""
LENGTHS = (1.0, 2.0)
"""How far, in doublings of a dial, δ stays alike."""
DOUBT_SDS, DOUBT_WEIGHT = (0.1, 0.3), 0.01
"""Components without the simulator: sizes of their process, and how likely they are together."""
MEAN_SD = 1.0
"""Spread of such a component's mean around the first run."""
LEAST_WEIGHT = 0.02
"""Components that are less likely have no say in what to measure next."""


@dataclass(frozen=True, slots=True, eq=False)
class _Component:
    """One pair of sizes of δ and η, and what it makes of all runs."""

    log_weight: float
    run_sd: float
    uses_simulator: bool
    state: Gaussian
    """With the simulator, of (log θ − log θ̂, δ); else of the log-times."""
    log_times: Gaussian


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
        self._runs = tuple(runs)
        self._model = LinearModel(surface, prior, cells, runs)
        self._components = tuple(self._all_components())

    @property
    def coefficients(self) -> Array:
        """The most likely step time, shape (7,)."""
        return self._model.coefficients

    @property
    def simulated_log_times(self) -> Array:
        """What the simulator says with it, in log seconds, shape (cells,)."""
        return self._model.simulated_log_times

    @property
    def parameters(self) -> Gaussian:
        """Of (log θ − log θ̂, δ) for middling sizes of δ and η, shape (7 + cells,)."""
        return self._model.state

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
        mean: Array = self.weights @ np.array([component.log_times.mean for component in self._components])
        return mean

    def draws(self, num_draws: int, generator: np.random.Generator) -> Array:
        """Surfaces that are as likely as each other, in log seconds, shape (num_draws, cells); not in random order."""
        shares = generator.multinomial(num_draws, self.weights)
        parts = [
            component.log_times.draws(int(share), generator)
            for component, share in zip(self._components, shares, strict=True)
            if share
        ]
        return np.concatenate(parts)

    def covariance_after(self, run: Evidence | None) -> Array:
        """The covariance of the log-times as the likely components see it, in the mean, shape (cells, cells).

        Args:
            run: one more run; what times it has does not matter.
        """
        weights = np.where(self.weights < LEAST_WEIGHT, 0, self.weights)
        covariances = [
            weight * self._after(component, run).covariance
            for component, weight in zip(self._components, weights / weights.sum(), strict=True)
            if weight
        ]
        covariance: Array = np.sum(covariances, axis=0)
        return covariance

    # the components

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
        model = self._model
        state = model.prior(cell_sd, length)
        for number, run in enumerate(self._runs):
            if number:  # how far the prior was off at the first run says nothing about δ and η
                log_weight += state.log_density(model.total(run, run_sd, model.schedules[number]))
            state = state.given(model.windows(run, run_sd))
        log_times = model.log_times(state, model.schedules[-1])
        return _Component(log_weight, run_sd, uses_simulator=True, state=state, log_times=log_times)

    def _without_simulator(self, log_weight: float, cell_sd: float, run_sd: float, length: float) -> _Component:
        first = self._model.whole_log_time(self._runs[0]) if self._runs else float(self.simulated_log_times.mean())
        covariance = dial_covariance(self.cells, cell_sd, length) + MEAN_SD**2
        log_times = Gaussian(np.full(len(self.cells), first), covariance)
        for number, run in enumerate(self._runs):
            seen = self._time_alone(run, run_sd)
            if number:
                log_weight += log_times.log_density(seen)
            log_times = log_times.given(seen)
        return _Component(log_weight, run_sd, uses_simulator=False, state=log_times, log_times=log_times)

    def _time_alone(self, run: Evidence, run_sd: float) -> Observation:
        variance = (run_sd * self._model.unevenness) ** 2 + (0 if run.is_complete else SHORT_RUN_SD**2)
        return self._model.at_cell(run.cell, self._model.whole_log_time(run), variance)

    def _after(self, component: _Component, run: Evidence | None) -> Gaussian:
        """The log-times after one more run."""
        model, state, run_sd = self._model, component.state, component.run_sd
        if run is None:
            return component.log_times
        if not component.uses_simulator:
            return state.given(self._time_alone(run, run_sd))
        schedule = model.schedules[-1].given(model.schedule_of(run))
        return model.log_times(state.given(model.windows(run, run_sd)), schedule)
