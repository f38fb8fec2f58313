"""The simulator under traffic that goes on and on: what a cell's metrics settle at, ramp and drain left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import Calibration
from maitre.errors import DoesNotFitError
from maitre.records import Cell, ServerConfig
from maitre.simulator.replay import Replay, replay_arrivals, replay_at_once
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.step_time import StepTime
from maitre.simulator.surface import ReplayedSurface
from maitre.verify.foresight.observed_traffic import Loop, ObservedTraffic
from maitre.verify.foresight.settled import CellFigures, full_figures, open_figures
from maitre.workload.arrivals import repeated

Array = NDArray[np.float64]

LIFETIMES = 8
"""Requests that are simulated, over those in flight …"""
FEWEST, MOST = 300, 4000
"""… within these bounds, …"""
MOST_STEPS = 25_000
"""… and as few as take about so many steps: a server with little to do makes one for each output token."""
PREFIX_SHARE = 0.5
"""So many of them where the prefix cache has to be simulated, which takes several times as long."""
REQUESTS_PER_SLOT = 4
"""With all requests at once: fewer leave no steady part between ramp and drain."""
FULL_LOAD = 1.0
"""Share of the capacity from which on the queue does not come to rest."""


@dataclass(frozen=True, slots=True)
class KnownServer:
    """What a simulation needs to know of a server."""

    server: ServerConfig
    """With the dials in force."""
    calibration: Calibration
    num_gpu_blocks: Callable[[Cell], int]
    """The KV pool of one engine at a cell, the null block included."""
    only_means: bool = False
    """The step time holds for a mean step, not for those with and without prompt tokens: no ITL percentiles."""


class SteadyTraffic:
    """One sample of the observed traffic; every cell and step time sees the same requests, and the same arrivals."""

    def __init__(
        self, traffic: ObservedTraffic, known: KnownServer, seed: int, loop: Loop | None = None,
        *, length_correlation: float = 0.0, arrival_shape: float = 1.0,
    ) -> None:  # fmt: skip
        """Draw the requests.

        Args:
            traffic: what was observed.
            known: the server.
            seed: of the requests and their arrivals.
            loop: how they come, if not as the traffic says.
            length_correlation: of prompt and output lengths.
            arrival_shape: of the gamma distribution of the times between arrivals; 1 is Poisson, less comes in bunches.

        Raises:
            InputError: the lengths do not go with the server's max_model_len.
        """
        self.loop = loop or traffic.loop
        """How the requests come."""
        self.traffic = traffic
        self._only_means = known.only_means
        self.num_in_flight = max(1, round(traffic.in_flight_mean))
        """Of a closed loop: its clients."""
        server = known.server
        drawn = traffic.workload(
            _num_requests(traffic, server.max_num_seqs),
            seed,
            server.max_model_len,
            length_correlation=length_correlation,
        )
        self._unit_s = _unit_arrivals(drawn.num_requests, seed, arrival_shape)
        self._surface = ReplayedSurface(drawn, server, known.calibration.step_time, known.num_gpu_blocks)
        self.present = server.cell
        self.workload = drawn
        self._schedules: dict[SchedulerRules, Replay] = {}
        self._settled: dict[tuple[Cell, bytes], CellFigures] = {}

    def figures(self, cell: Cell, coefficients: Array) -> CellFigures:
        """What one cell settles at.

        Args:
            cell: the dials.
            coefficients: of the step time, shape (7,).

        Raises:
            DoesNotFitError: a request is larger than the KV pool.
        """
        key = cell, coefficients.tobytes()
        if key not in self._settled:
            told = self._settle(cell, coefficients)
            unknown = {"itl_p50_s": None, "itl_p99_s": None} if self._only_means else {}
            self._settled[key] = told.model_copy(update=unknown)
        return self._settled[key]

    def _settle(self, cell: Cell, coefficients: Array) -> CellFigures:
        full = self.at_concurrency(cell, coefficients, cell.max_num_seqs)
        if self.loop == "backlog":
            return full
        if self.loop == "closed":
            here = self.at_concurrency(cell, coefficients, min(cell.max_num_seqs, self.num_in_flight))
            waiting = max(0.0, self.num_in_flight - here.running)
            return here.model_copy(update={"keeps_up": True, "waiting": waiting, "capacity_rps": full.capacity_rps})
        if self.traffic.arrival_rps >= FULL_LOAD * full.capacity_rps:
            return full
        replay = self._arrivals(cell, coefficients)
        settled = open_figures(replay, self._arrival_s, self._rules(cell), full.capacity_rps)
        rate_rps = self.traffic.arrival_rps  # all that come are served; a window's own count is left to chance
        mean_output = float(self.workload.output_tokens.mean())
        return settled.model_copy(update={"requests_per_s": rate_rps, "output_tokens_per_s": rate_rps * mean_output})

    def at_concurrency(self, cell: Cell, coefficients: Array, num_in_flight: int) -> CellFigures:
        """So many requests at any time, whoever waits behind them; arguments else as for `figures`."""
        rules = self._at_most(cell, num_in_flight)
        replay = self._schedule(rules)
        step_end_s = np.cumsum(replay.steps_s(self._step_time(cell, coefficients)))
        num_clients = self.num_in_flight if self.loop == "closed" else None
        return full_figures(replay, step_end_s, rules, num_clients)

    def time_shares(self, cell: Cell, coefficients: Array) -> Array:
        """Which share of the time of all steps each coefficient stands for when the cell is as busy as observed."""
        replay = self._schedule(self._at_most(cell, self.num_in_flight))
        step_time = self._step_time(cell, coefficients)
        seconds = replay.features(step_time).sum(axis=0) * step_time.coefficients
        shares: Array = seconds / seconds.sum()
        return shares

    def check(self, cell: Cell) -> None:
        """Whether a cell can hold every request.

        Raises:
            DoesNotFitError: it cannot.
        """
        rules = self._rules(cell)
        longest = int((self.workload.prompt_tokens + self.workload.output_tokens).max())
        if longest > rules.num_usable_blocks * rules.block_size:
            raise DoesNotFitError(
                f"a request of {longest:,} tokens is larger than the KV pool of {cell}",
                "check num_gpu_blocks, and the length that the histograms end at",
            )

    @property
    def _arrival_s(self) -> Array:
        arrivals: Array = self._unit_s / self.traffic.arrival_rps
        return arrivals

    def _arrivals(self, cell: Cell, coefficients: Array) -> Replay:
        paced = self.workload.model_copy(update={"arrival_s": self._arrival_s})
        return replay_arrivals(paced, self._rules(cell), self._step_time(cell, coefficients))

    def _at_most(self, cell: Cell, num_in_flight: int) -> SchedulerRules:
        return replace(self._rules(cell), max_num_seqs=min(cell.max_num_seqs, num_in_flight))

    def _schedule(self, rules: SchedulerRules) -> Replay:
        """Of enough requests for each slot that the pool can fill, all there at once; it depends on no step time."""
        if rules not in self._schedules:
            footprint = self.workload.prompt_tokens + self.workload.output_tokens / 2
            fit = rules.num_usable_blocks * rules.block_size / float(np.average(footprint, weights=footprint))
            num_slots = min(rules.max_num_seqs, fit)
            times = max(1, round(REQUESTS_PER_SLOT * num_slots / self.workload.num_requests + 0.5))
            self._schedules[rules] = replay_at_once(repeated(self.workload, times), rules)
        return self._schedules[rules]

    def _rules(self, cell: Cell) -> SchedulerRules:
        return self._surface.rules(cell)

    def _step_time(self, cell: Cell, coefficients: Array) -> StepTime:
        return self._surface.step_time(cell, coefficients)


def _unit_arrivals(num_requests: int, seed: int, shape: float) -> Array:
    """Arrival times at a mean rate of one request a second, the first at 0."""
    gaps_s = np.random.default_rng(seed).gamma(shape, size=num_requests)
    gaps_s[0] = 0.0
    times: Array = np.cumsum(gaps_s) * (num_requests - 1) / gaps_s.sum()
    return times


def _num_requests(traffic: ObservedTraffic, max_num_seqs: int) -> int:
    """So many that the ramp is short and each client sends more than one, and no more than a second is needed."""
    in_flight = max(traffic.in_flight_mean, 1.0)
    served = min(in_flight, 2.0 * max_num_seqs)  # those that only wait need no lifetimes
    affordable = MOST_STEPS * served / traffic.mean_output_tokens
    wanted = max(min(LIFETIMES * served + FEWEST, affordable), 2 * in_flight)
    return round(float(np.clip(wanted, FEWEST, MOST)) * (PREFIX_SHARE if traffic.has_prefixes else 1.0))
