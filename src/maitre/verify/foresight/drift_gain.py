"""By how much the best cell of a study's grid beats the deployed one on the traffic that is observed now."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maitre.calibration.doubt import leading_directions
from maitre.errors import DoesNotFitError
from maitre.records import Cell
from maitre.search.merit_spread import (
    NUM_DIRECTIONS,
    MeritSpread,
    contenders,
    draw_changes,
    find_spread,
    own_scale,
)
from maitre.slo import parse_latency_targets
from maitre.trial.metrics import summarize
from maitre.trial.paced import PacedSurface
from maitre.trial.rate_surface import RateSurface, in_reach, nearest
from maitre.verify.foresight.observed_traffic import ObservedTraffic
from maitre.verify.foresight.studied_server import StudiedServer

Array = NDArray[np.float64]

NUM_REQUESTS = 400
"""Of each sample of the traffic; repeated where the slots need more."""
NUM_SAMPLES = 2
"""Further samples, the fewest that have a spread."""
NUM_DRAWS = 2000
COARSE = 0.03
"""Tolerance of the searches for a rate: gains that are worth anything are larger."""


@dataclass(frozen=True, slots=True)
class Gain:
    """The best cell over the deployed one."""

    best: Cell
    gain: float | None
    """Ratio minus 1 of what the study looked for: requests/s, or one over the latency. None, as the next two, if the
    deployed cell meets the study's targets at no rate."""
    low: float | None
    """95 % interval."""
    high: float | None


def best_gain(studied: StudiedServer, traffic: ObservedTraffic, coefficients: Array, seed: int) -> Gain:
    """Simulate the study's grid on the observed traffic.

    Args:
        studied: the study, with the dials of the deployed cell.
        traffic: of one engine.
        coefficients: of the step time, shape (7,).
        seed: of the samples of the traffic and of all draws.

    Raises:
        DoesNotFitError: the deployed cell's pool does not hold a request.
    """
    deployed = studied.known.server.cell
    merits = _Merits(studied, traffic, seed)
    found = _find_all(merits, (*studied.cells, deployed), coefficients)
    if deployed not in found:
        raise DoesNotFitError(f"the KV pool of {deployed} does not hold the longest request", "check num_gpu_blocks")
    if not found[deployed] > 0:
        best = max(found, key=lambda cell: found[cell])
        return Gain(best if found[best] > 0 else deployed, None, None, None)
    spreads = _spread(merits, found, deployed, coefficients)
    # the best of many in one sample is partly the luckiest: those that may win are compared by the mean of all samples
    log_merits = {cell: np.log(found[cell]) + one.samples.sum() / (NUM_SAMPLES + 1) for cell, one in spreads.items()}
    best = max(log_merits, key=lambda cell: log_merits[cell])
    off = draw_changes(
        [best, deployed], lambda cell: spreads[cell], merits.calibration, NUM_DRAWS, np.random.default_rng(seed)
    )
    log_gain = log_merits[best] - log_merits[deployed]
    low, high = log_gain + np.percentile(off[:, 0] - off[:, 1], [2.5, 97.5])
    return Gain(best, *(float(np.expm1(value)) for value in (log_gain, low, high)))


class _Merits:
    """What the study looked for, as more is better, in several samples of the observed traffic."""

    def __init__(self, studied: StudiedServer, traffic: ObservedTraffic, seed: int) -> None:
        known = studied.known
        self.calibration = known.calibration
        self._objective = studied.study.objective
        self._targets = parse_latency_targets(self._objective.targets)
        self._rate_rps = traffic.arrival_rps
        self._samples = [
            PacedSurface(
                traffic.workload(NUM_REQUESTS, number, known.server.max_model_len), known.server,
                known.calibration.step_time, known.num_gpu_blocks, seed=number,
            )
            for number in range(seed, seed + NUM_SAMPLES + 1)
        ]  # fmt: skip

    def of(self, number: int, cell: Cell, coefficients: Array, guess: float | None) -> float:
        """Of a cell in one sample, from a guess."""
        sample = self._samples[number]
        if self._objective.kind == "throughput":
            return sample.capacity_rps(cell, coefficients)
        if self._objective.kind == "rate":
            return RateSurface(sample, self._targets).find(cell, coefficients, guess, tolerance=COARSE).crossing_rps
        run = sample.run(cell, coefficients, self._rate_rps)
        return self._objective.merit(summarize(run, sample.workload, engine="simulated", targets=self._targets))

    def time_shares(self, cell: Cell, coefficients: Array) -> Array:
        """Which share of the time of all steps each coefficient stands for when the cell is busy, shape (7,)."""
        sample = self._samples[0]
        return sample.time_shares(cell, coefficients, sample.capacity_rps(cell, coefficients))


def _find_all(merits: _Merits, cells: tuple[Cell, ...], coefficients: Array) -> dict[Cell, float]:
    """The merits of all cells that can hold the requests; each search begins at the answer of the nearest cell."""
    found: dict[Cell, float] = {}
    for cell in in_reach(dict.fromkeys(cells)):
        near = nearest(cell, found)
        try:
            found[cell] = merits.of(0, cell, coefficients, found[near] if near else None)
        except DoesNotFitError:
            continue
    return found


def _spread(merits: _Merits, found: dict[Cell, float], deployed: Cell, coefficients: Array) -> dict[Cell, MeritSpread]:
    """How far the merits of the deployed cell, and of those that may win, may be off."""
    tried = contenders(found, deployed)
    shares = {cell: merits.time_shares(cell, coefficients) for cell in tried}
    covariance = np.array(merits.calibration.covariance)
    directions = leading_directions(covariance, np.stack(list(shares.values())), NUM_DIRECTIONS)

    def spread(cell: Cell) -> MeritSpread:
        merit = found[cell]
        return find_spread(
            merit,
            lambda step: merits.of(0, cell, coefficients * np.exp(step), merit * float(np.exp(-shares[cell] @ step))),
            lambda number: merits.of(number + 1, cell, coefficients, merit),
            directions,
            own_scale(merits.calibration),
            num_samples=NUM_SAMPLES,
        )

    return {cell: spread(cell) for cell in tried}
