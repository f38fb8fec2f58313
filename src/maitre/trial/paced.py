"""The simulator's runs of one workload at any rate, cell and step time.

Every run has the same requests in the same order, with the same bunches and pauses between them, so that two cells, two
rates or two step times differ by nothing but themselves (common random numbers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from maitre.records import Cell, ServerConfig, Workload
from maitre.simulator.replay import Replay, replay_arrivals, replay_at_once
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.step_time import StepTime
from maitre.simulator.surface import Factors, ReplayedSurface, no_factors
from maitre.trial.run import Run, replay_run
from maitre.trial.steady import steady_window
from maitre.workload.arrivals import every_nth, repeated, resampled, unit_arrivals

REQUESTS_PER_SLOT = 4
"""Fewer leave no steady window between ramp and drain (`maitre.trial.steady`)."""

MOST_ALONE = 500
"""Requests that are run one by one; more of them change a percentile by little."""


class PacedSurface:
    """Replays cells at rates. What does not depend on the step time is kept."""

    def __init__(
        self,
        workload: Workload,
        server: ServerConfig,
        step_time: StepTime,
        num_gpu_blocks: Callable[[Cell], int],
        *,
        seed: int = 0,
        started_at: Cell | None = None,
        factors: Factors = no_factors,
    ) -> None:
        """Prepare.

        Args:
            workload: the requests; their own arrival times are made faster or slower, and without any they come as a
                Poisson process.
            server: its scheduler's settings; the dials are taken from each cell.
            step_time: its knee; coefficients come with each call, CUDA graphs from each cell.
            num_gpu_blocks: the KV pool at a cell.
            seed: of the Poisson process.
            started_at: as in `ReplayedSurface`, as is the next one.
            factors: by what the coefficients are multiplied at a cell with other flags.

        Raises:
            UsageError: there is no rate, since all requests come at one time.
        """
        self.workload = workload
        self._unit_s = unit_arrivals(workload, seed)
        self._surface_of: Callable[[Workload], ReplayedSurface] = lambda requests: ReplayedSurface(
            requests, server, step_time, num_gpu_blocks, started_at=started_at, factors=factors
        )
        self._sample: Callable[[int], PacedSurface] = lambda other: PacedSurface(
            resampled(workload, other), server, step_time, num_gpu_blocks,
            seed=other, started_at=started_at, factors=factors,
        )  # fmt: skip
        self._once = self._surface_of(workload)
        self._crowds: dict[int, ReplayedSurface] = {}
        self._alone: dict[SchedulerRules, Replay] = {}
        self._few = every_nth(workload, -(-workload.num_requests // MOST_ALONE))

    def resampled(self, seed: int) -> PacedSurface:
        """The same server with another sample of the traffic; the seed is not that of this one."""
        return self._sample(seed)

    def run(self, cell: Cell, coefficients: NDArray[np.float64], rate_rps: float) -> Run:
        """The whole workload at a rate.

        Args:
            cell: the dials.
            coefficients: of the step time, shape (7,).
            rate_rps: mean rate of the arrivals, requests/s.

        Raises:
            DoesNotFitError: a request is larger than the KV pool.
        """
        paced = self.at(rate_rps)
        replay = self._replay(cell, coefficients, paced)
        assert replay.step_end_s is not None
        return replay_run(replay, replay.step_end_s, paced, self._once.rules(cell))

    def time_shares(self, cell: Cell, coefficients: NDArray[np.float64], rate_rps: float) -> NDArray[np.float64]:
        """Which share of the time of all steps each coefficient stands for in such a run, shape (7,), sum 1."""
        replay = self._replay(cell, coefficients, self.at(rate_rps))
        step_time = self.step_time(cell, coefficients)
        seconds = replay.features(step_time).sum(axis=0) * step_time.coefficients
        shares: NDArray[np.float64] = seconds / seconds.sum()
        return shares

    def run_alone(self, cell: Cell, coefficients: NDArray[np.float64]) -> Run:
        """Requests one by one, each with the server to itself: no rate has lower latencies."""
        rules = replace(self._once.rules(cell), max_num_seqs=1)
        if rules not in self._alone:
            self._alone[rules] = replay_at_once(self._few, rules)
        replay = self._alone[rules]
        step_end_s = np.cumsum(replay.steps_s(self.step_time(cell, coefficients)))
        run = replay_run(replay, step_end_s, self._few, self._once.rules(cell))
        return replace(run, arrival_s=run.first_scheduled_s, is_burst=False)

    def capacity_rps(self, cell: Cell, coefficients: NDArray[np.float64]) -> float:
        """Requests/s of a server that always has somebody waiting: a queue that is there never shrinks above this rate.

        Raises:
            DoesNotFitError: a request is larger than the KV pool.
        """
        times = self._num_copies(cell)
        if times not in self._crowds:
            self._crowds[times] = self._surface_of(repeated(self.workload, times))
        crowd = self._crowds[times]
        replay = crowd.replay(cell)
        step_end_s = np.cumsum(replay.steps_s(self.step_time(cell, coefficients)))
        run = replay_run(replay, step_end_s, crowd.workload, crowd.rules(cell))
        window = steady_window(run)
        if window is None:
            return crowd.workload.num_requests / run.duration_s
        return window.total_tokens_per_s * self.workload.num_requests / self.workload.total_tokens

    def step_time(self, cell: Cell, coefficients: NDArray[np.float64]) -> StepTime:
        """The step time with these coefficients, shape (7,), and the CUDA graphs of the cell."""
        return self._once.step_time(cell, coefficients)

    def at_once(self) -> Workload:
        """The workload with all its requests there from the start."""
        return self.workload.model_copy(update={"arrival_s": None})

    def at(self, rate_rps: float) -> Workload:
        """The workload with its requests coming at a mean rate, in requests/s."""
        return self.workload.model_copy(update={"arrival_s": self._unit_s / rate_rps})

    def _replay(self, cell: Cell, coefficients: NDArray[np.float64], paced: Workload) -> Replay:
        return replay_arrivals(paced, self._once.rules(cell), self.step_time(cell, coefficients))

    def _num_copies(self, cell: Cell) -> int:
        """Of the workload, for enough requests in each slot that the KV pool can fill."""
        prompt, output = self.workload.prompt_tokens, self.workload.output_tokens
        rules = self._once.rules(cell)
        mean_footprint = float(np.average(prompt + output / 2, weights=output))
        num_slots = min(cell.max_num_seqs, rules.num_usable_blocks * rules.block_size / mean_footprint)
        return max(1, round(REQUESTS_PER_SLOT * num_slots / self.workload.num_requests + 0.5))
