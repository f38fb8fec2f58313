"""Calibrate, predict, challenge, stop: measures only what can still win.

1. Two runs calibrate the step time: the present cell, and the one from which most is learned.
2. From all runs so far comes the joint posterior of all cells (`maitre.search.posterior`).
3. The leader is the cell that is most surely within epsilon of the best. One that was not measured is measured next;
   else its strongest challenger is, or itself again, whichever settles more in a second of measuring.
4. Stop when the leader was measured and is within epsilon of the best with probability 1 − delta, or when the cells in
   question have been measured so often that more runs would settle nothing.
5. A run is cut short once its cell can hardly win.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import Calibration
from maitre.errors import DoesNotFitError
from maitre.recording import StepRecord
from maitre.records import Cell
from maitre.search.evidence import Evidence, foresee, read_duration, read_steps
from maitre.search.gaussian import Array
from maitre.search.posterior import Posterior
from maitre.search.recommend import SAME_LATENCY, WORTH_LATENCY
from maitre.search.strategy import Ask, Told
from maitre.simulator.surface import ReplayedSurface

NUM_DRAWS = 4000
NUM_CALIBRATIONS = 2
NUM_RIVALS = 6
"""Challengers that are weighed against each other."""
HOPELESS = 0.01
"""A run is cut short when its cell is within epsilon of the best with less than this probability."""
LEAST_SHARE = 0.25
"""A run is not cut short before this share of its output tokens: the ramp says little about the rest."""
MOST_REPEATS = 6
"""Runs of one cell; what these do not settle is smaller than their noise."""
WATCH_GROWTH = 1.3
"""A running cell is judged again after so many times the steps of the last time."""


class Challenge:
    """The strategy of maitre."""

    name = "maitre"

    def __init__(
        self,
        cells: Sequence[Cell],
        baseline: Cell,
        surface: ReplayedSurface,
        prior: Calibration,
        *,
        epsilon: float = 0.02,
        delta: float = 0.05,
        start_s: float = 0.0,
        switch_s: float = 0.0,
        calm: Callable[[Cell, Array], float] = lambda _, __: 0.0,
        seed: int = 0,
    ) -> None:
        """Prepare.

        Args:
            cells: the grid; those that the KV pool cannot serve are left out.
            baseline: the present setting.
            surface: the simulator.
            prior: what is known of the step time before anything is measured.
            epsilon: cells within this share of the best throughput are equally good.
            delta: how unsure the answer may be.
            start_s: seconds that a run costs beside its own time.
            switch_s: seconds that it costs more if its flags are not those of the run before.
            calm: p99 inter-token latency of a cell in seconds, from the step time's coefficients, shape (7,): the
                lowest wins among good cells.
            seed: of the draws from the posterior.

        Raises:
            DoesNotFitError: the KV pool does not hold a request at the present setting.
        """
        surface.replay(baseline)
        self.cells = tuple(cell for cell in dict.fromkeys([baseline, *cells]) if _fits(surface, cell))
        self._baseline = baseline
        self._surface = surface
        self._prior = prior
        self._epsilon = epsilon
        self._delta = delta
        self._start_s, self._switch_s = start_s, switch_s
        self._calm = calm
        self._seed = seed
        self._told: list[Told] = []
        self._runs: list[Evidence] = []
        self._out: set[Cell] = set()
        self._asked = baseline
        self._judged_at = 0
        self._learn()

    def ask(self) -> Ask | None:
        """The next run; None when the leader was measured and is good enough, or nothing is left to measure."""
        if not self._alive:
            return None
        if not self._runs and self._baseline not in self._out:
            return self._ask(self._baseline, "the present setting, to compare with")
        if len(self._runs) < NUM_CALIBRATIONS and len(self._alive) > 1:
            return self._ask(self._most_telling(self._alive), "tells most about the others")
        leader = self.leader
        if leader not in self._measured:
            return self._ask(leader, "the leader, not measured yet")
        rivals = [cell for cell in self._rivals(leader) if self._measured.count(cell) < MOST_REPEATS]
        if not rivals or self.probability(leader) >= 1 - self._delta:
            return None
        cell = self._most_telling(rivals)
        return self._ask(cell, "the leader once more" if cell == leader else f"challenges {leader}")

    def watch(self, steps: StepRecord) -> bool:
        """Whether the running cell can hardly win any more."""
        if len(self._runs) < NUM_CALIBRATIONS or steps.num_steps < WATCH_GROWTH * self._judged_at:
            return False
        share = steps.columns["num_decodes"].sum() / self._surface.workload.output_tokens.sum()
        if share < LEAST_SHARE:
            return False
        self._judged_at = steps.num_steps
        run = read_steps(self._surface, self._asked, steps, is_complete=False)
        posterior = Posterior(self._surface, self._prior, self.cells, [*self._runs, run])
        is_good = _is_good(self._draws_of(posterior), self._epsilon)
        return bool(is_good[:, self._position(self._asked)].mean() < HOPELESS)

    def tell(self, told: Told) -> None:
        """Learn from a run; a cell that failed is out."""
        if told.failed is not None:
            self._out.add(told.cell)
        else:
            self._told.append(told)
            is_wrong = told.steps is not None and self._surface.learn_pool(told.cell, told.steps)
            read = self._told if is_wrong else [told]  # with another pool, earlier runs say something else
            self._runs = [*([] if is_wrong else self._runs), *map(self._read, read)]
        self._judged_at = 0
        self._learn()

    def _read(self, told: Told) -> Evidence:
        if told.steps is not None:
            return read_steps(self._surface, told.cell, told.steps, is_complete=told.duration_s is not None)
        if told.duration_s is None:
            raise ValueError(f"nothing is known of the run at {told.cell}")
        return read_duration(self._surface, told.cell, told.duration_s)

    def recommend(self) -> Cell:
        """The leader, or the one among the cells that were measured."""
        measured = self._measured or [run.cell for run in self._runs if run.is_complete]
        return self.leader if self.leader in measured else self._leader_of(measured)

    @property
    def sure_and_measured(self) -> list[Cell]:
        """The measured cells that are within epsilon of the best with probability 1 − delta."""
        measured = dict.fromkeys(self._measured)
        return [cell for cell in measured if self.probability(cell) >= 1 - self._delta]

    def probability(self, cell: Cell) -> float:
        """How likely the cell is within epsilon of the best."""
        return float(self._good[self._position(cell)])

    def expected_s(self, cell: Cell) -> float:
        """How long the whole workload takes at a cell, as far as is known, in seconds."""
        return float(np.exp(self.posterior.mean[self._position(cell)]))

    def log_time_draws(self, num_draws: int) -> Array:
        """Surfaces that are as likely as each other, in log seconds, shape (num_draws, cells)."""
        return self.posterior.draws(num_draws, np.random.default_rng(self._seed))

    @property
    def leader(self) -> Cell:
        """Of the cells that are surely good the calmest, where a measured one counts before others; else the surest."""
        return self._leader_of(self._alive or self.cells)

    def _leader_of(self, cells: Sequence[Cell]) -> Cell:
        sure = [cell for cell in cells if self.probability(cell) >= 1 - self._delta]
        if not sure:
            return max(cells, key=self.probability)
        least = min(self._latency(cell) for cell in sure)
        measured = [cell for cell in sure if cell in self._measured]
        calm = [cell for cell in measured if self._latency(cell) <= least * (1 + WORTH_LATENCY)]
        calm = calm or [cell for cell in sure if self._latency(cell) <= least * (1 + SAME_LATENCY)]
        return min(calm, key=lambda cell: (cell.max_num_seqs, cell.max_num_batched_tokens))

    # what is known

    def _learn(self) -> None:
        self.posterior = Posterior(self._surface, self._prior, self.cells, self._runs)
        self._latencies: dict[Cell, float] = {}
        self._draws = self._draws_of(self.posterior)
        self._good = _is_good(self._draws, self._epsilon).mean(axis=0)

    def _draws_of(self, posterior: Posterior) -> Array:
        """Log-times, infinite where a cell is out; the same for the same runs, however often one was watched."""
        draws = posterior.draws(NUM_DRAWS, np.random.default_rng(self._seed))
        draws[:, [self._position(cell) for cell in self._out]] = np.inf
        return draws

    @property
    def _alive(self) -> list[Cell]:
        return [cell for cell in self.cells if cell not in self._out]

    @property
    def _measured(self) -> list[Cell]:
        return [run.cell for run in self._runs if run.is_complete and run.cell not in self._out]

    def _position(self, cell: Cell) -> int:
        return self.cells.index(cell)

    def _latency(self, cell: Cell) -> float:
        if cell not in self._latencies:
            self._latencies[cell] = self._calm(cell, self.posterior.coefficients)
        return self._latencies[cell]

    # what to measure next

    def _ask(self, cell: Cell, reason: str) -> Ask:
        self._asked = cell
        return Ask(cell, reason)

    def _rivals(self, leader: Cell) -> list[Cell]:
        """The leader, and those that are the best in most of the draws in which it is not good."""
        won = self._wins_over(leader)
        order = np.argsort(-won)[:NUM_RIVALS]
        return [leader, *(self.cells[i] for i in order if won[i] > 0 and self.cells[i] != leader)]

    def _wins_over(self, leader: Cell) -> Array:
        """How often each cell is the best while the leader is not good, shape (cells,)."""
        draws = self._draws
        lost = draws[draws[:, self._position(leader)] > draws.min(axis=1) - np.log1p(-self._epsilon)]
        return np.bincount(lost.argmin(axis=1), minlength=len(self.cells)) / len(draws)

    def _most_telling(self, candidates: Sequence[Cell]) -> Cell:
        """The one that takes most from the variance between the leader and its rivals, in a second of measuring."""
        leader = self._position(self.leader)
        weights = self._wins_over(self.leader) + 1e-6
        before, last = self.posterior.covariance_after(None), self._asked

        def worth(cell: Cell) -> float:
            after = self.posterior.covariance_after(foresee(self._surface, cell, self.posterior.coefficients))
            gain = _contrasts(before, leader) - _contrasts(after, leader)
            switch_s = 0.0 if cell.flags == last.flags else self._switch_s
            return float(weights @ gain) / (self._start_s + switch_s + self.expected_s(cell))

        return max(candidates, key=worth)


def _is_good(log_times: Array, epsilon: float) -> NDArray[np.bool_]:
    """Whether each cell is within epsilon of the best in each draw, shape (draws, cells)."""
    good: NDArray[np.bool_] = log_times <= log_times.min(axis=1, keepdims=True) - np.log1p(-epsilon)
    return good


def _contrasts(covariance: Array, leader: int) -> Array:
    """The variance of each cell's log-time against the leader's, shape (cells,)."""
    variance: Array = np.diag(covariance) - 2 * covariance[leader] + covariance[leader, leader]
    return variance


def _fits(surface: ReplayedSurface, cell: Cell) -> bool:
    try:
        surface.replay(cell)
    except DoesNotFitError:
        return False
    return True
