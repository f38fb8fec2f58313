"""Which cell to run next, and at which rate, to find the highest rate within latency targets on a real server.

A run says how long steps are, at whatever rate it is made: its windows teach the step time θ and each cell's own δ
(`maitre.search.posterior`). The highest rate of every cell follows in the simulator, and so does how far it may be off.

1. The present cell with all requests at once: how long steps are is not known yet, and no run is shorter.
2. The leader, the cell that is most surely within epsilon of the best, at the rate that is foretold for it; while that
   is not sure, its strongest challenger, too.
3. The present cell at its rate: the gain is counted from it.
4. The leader until a run near its foretold rate has met the targets; the rate is lowered after one that has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import Calibration
from maitre.errors import DoesNotFitError
from maitre.known_rates import KnownRates
from maitre.recording import StepRecord
from maitre.records import Cell, HighestRate, Trial
from maitre.search.evidence import Evidence
from maitre.search.paced_evidence import read_paced_steps
from maitre.simulator.surface import ReplayedSurface
from maitre.trial.rate_surface import RateSurface

Array = NDArray[np.float64]

CLOSE = 0.05
"""A rate is confirmed by a run that meets the targets at no less than the rate minus this share."""
LOWER = 0.97
"""After a run that misses the targets, the next is at this share of its rate or below."""
LITTLE = 0.1
"""Share of the capacity at which a run shows whether the targets can be met at all."""
MOST_CONFIRMATIONS = 5
"""Runs of one cell at rates of its own."""


@dataclass(frozen=True, slots=True)
class RateAsk:
    """The next run."""

    cell: Cell
    rate_rps: float | None
    """Requests/s; None for all requests at once."""
    reason: str


class RateSearch:
    """Learns from runs, and says what to run next."""

    def __init__(
        self,
        cells: Sequence[Cell],
        baseline: Cell,
        rates: RateSurface,
        schedules: ReplayedSurface,
        prior: Calibration,
        *,
        epsilon: float = 0.02,
        delta: float = 0.05,
        seed: int = 0,
    ) -> None:
        """Prepare.

        Args:
            cells: the grid; those that the KV pool cannot serve are left out.
            baseline: the present setting.
            rates: finds highest rates in the simulator.
            schedules: of the same requests, all at once.
            prior: what is known of the step time before anything is measured.
            epsilon: cells within this share of the highest rate are equally good.
            delta: how unsure the answer may be.
            seed: of the draws from the posterior.
        """
        self.cells = tuple(cell for cell in dict.fromkeys([baseline, *cells]) if _fits(schedules, cell))
        self.baseline = baseline
        self.rates = rates
        self._schedules = schedules
        self._prior = prior
        self._epsilon, self._delta = epsilon, delta
        self._generator = np.random.default_rng(seed)
        self._runs: list[Evidence] = []
        self._out: set[Cell] = set()
        self.paced: dict[Cell, list[Trial]] = {}
        """Runs that were made at a rate, by cell and in order."""
        self._known: KnownRates | None = None

    @property
    def known(self) -> KnownRates:
        """What the runs say; there is at least one."""
        assert self._known is not None
        return self._known

    def ask(self) -> RateAsk | None:
        """The next run; None when the leader is sure enough and confirmed, or no cell can meet the targets."""
        if not self._runs:
            return RateAsk(self.baseline, None, "the present setting with all requests at once: how long steps are")
        leader = self.leader
        if self.rate(leader) == 0:
            return self._little_traffic()
        sure = f"within the margin with {self.probability(leader):.0%}"
        if leader not in self.paced:
            return RateAsk(leader, self.rate(leader), f"the leader, {sure}, at its foretold rate")
        if self.probability(leader) < 1 - self._delta and (rival := self._challenger(leader)) is not None:
            return RateAsk(rival, self.rate(rival), f"a challenger of {leader}, which is {sure}")
        if self.baseline not in self.paced and self.rate(self.baseline) > 0:
            return RateAsk(self.baseline, self.rate(self.baseline), "the present setting at its foretold rate")
        return self._confirmation(leader)

    def tell(self, cell: Cell, trial: Trial | None, steps: StepRecord | None) -> None:
        """Learn from a run.

        Args:
            cell: the dials.
            trial: its figures, with `arrival_rps` and attainment if it was made at a rate; None if it failed, and then
                the cell is out.
            steps: what the server computed.
        """
        if trial is None:
            self._out.add(cell)
        elif trial.arrival_rps is not None:
            self.paced.setdefault(cell, []).append(trial)
        if steps is not None:
            self._runs.append(read_paced_steps(self._schedules, cell, steps))
        if self._runs:
            self._known = KnownRates(
                self.cells, self.baseline, self.rates, self._schedules, self._prior, self._runs, self._generator,
                before=self._known,
            )  # fmt: skip

    @property
    def leader(self) -> Cell:
        """Of the cells that are surely good a measured one, then the one with the smallest dials; else the surest."""
        sure = [cell for cell in self._alive if self.probability(cell) >= 1 - self._delta]
        measured = [cell for cell in sure if cell in self.paced]
        if sure:
            return min(measured or sure, key=lambda cell: (cell.max_num_seqs, cell.max_num_batched_tokens))
        return max(self._alive, key=lambda cell: (self.probability(cell), self.rate(cell)))

    def recommend(self) -> Cell:
        """The leader, if it has a run at a rate; else the surest cell that has one, or the present setting."""
        leader = self.leader
        measured = [cell for cell in self._alive if cell in self.paced]
        return leader if leader in measured else max(measured, key=self.probability, default=self.baseline)

    def rate(self, cell: Cell) -> float:
        """The highest rate of a cell, as far as is known, in requests/s.

        What is foretold, but no less than a rate below the capacity at which a run met the targets, and below one at
        which a run missed them; a run that the load generator spoiled does not count as one.
        """
        confirmed_rps = min(self.confirmed_rps(cell) or 0.0, self.known.found[cell].capacity_rps)
        tried = [trial for trial in self.paced.get(cell, []) if not _is_met(trial) and not trial.spoiled_by]
        missed = [t.arrival_rps for t in tried if t.arrival_rps and t.arrival_rps > confirmed_rps]
        return max(confirmed_rps, min([self.known.found[cell].rate_rps, *(LOWER * rate_rps for rate_rps in missed)]))

    def confirmed_rps(self, cell: Cell) -> float | None:
        """The highest rate at which a run of the cell met the targets."""
        return max((t.arrival_rps for t in self.paced.get(cell, []) if t.arrival_rps and _is_met(t)), default=None)

    def is_confirmed(self, cell: Cell) -> bool:
        """Whether a run near its highest rate has met the targets."""
        confirmed_rps = self.confirmed_rps(cell)
        return confirmed_rps is not None and confirmed_rps >= self.rate(cell) * (1 - CLOSE)

    def probability(self, cell: Cell) -> float:
        """How likely the cell is within epsilon of the best."""
        return float(self._is_good()[:, self.cells.index(cell)].mean())

    def trial(self, cell: Cell) -> Trial:
        """The figures of a cell.

        Those of its run that met the targets at the highest rate, else of its last run at a rate, else the simulator's.
        """
        highest = HighestRate(
            rate_rps=self.rate(cell),
            bound_by=str(self.known.found[cell].bound_by or "capacity"),
            capacity_rps=self.known.found[cell].capacity_rps,
            confirmed_rps=self.confirmed_rps(cell),
        )
        runs = self.paced.get(cell)
        if not runs:
            return self.rates.trial(self.known.found[cell]).model_copy(update={"highest_rate": highest})
        shown = max(runs, key=lambda trial: (_is_met(trial), trial.arrival_rps if _is_met(trial) else 0.0))
        return shown.model_copy(update={"highest_rate": highest})

    # what is known

    @property
    def _alive(self) -> list[Cell]:
        return [cell for cell in self.cells if cell not in self._out]

    def _is_good(self) -> NDArray[np.bool_]:
        """Whether each cell is within epsilon of the best in each draw, shape (draws, cells)."""
        logs = self._logs()
        good: NDArray[np.bool_] = logs >= logs.max(axis=1, keepdims=True) + np.log1p(-self._epsilon)
        return good

    def _logs(self) -> Array:
        """Logarithms of the highest rates that are as likely as each other, shape (draws, cells)."""
        with np.errstate(divide="ignore"):
            logs: Array = (
                np.log([0.0 if cell in self._out else self.rate(cell) for cell in self.cells]) + self.known.changes
            )
        return logs

    # what to run next

    def _challenger(self, leader: Cell) -> Cell | None:
        """The cell that is most often the best where the leader is not good, and has no run at a rate yet."""
        lost = ~self._is_good()[:, self.cells.index(leader)]
        num_won = np.bincount(self._logs()[lost].argmax(axis=1), minlength=len(self.cells))
        order = [self.cells[i] for i in np.argsort(-num_won, kind="stable") if num_won[i]]
        return next((cell for cell in order if cell not in self.paced), None)

    def _little_traffic(self) -> RateAsk | None:
        """A run where no cell is foretold to meet the targets: the forecast may be wrong."""
        ends = self.known.found[self.baseline].bound_by
        is_stream = ends is not None and ends.metric in {"itl", "tpot"}
        cell = min(self._alive, key=lambda c: c.max_num_batched_tokens) if is_stream else self.baseline
        if cell in self.paced or cell in self._out:
            return None
        rate_rps = LITTLE * self.known.found[cell].capacity_rps
        return RateAsk(cell, rate_rps, "no cell is foretold to meet the targets: one of them with little traffic")

    def _confirmation(self, leader: Cell) -> RateAsk | None:
        runs, rate_rps = self.paced[leader], self.rate(leader)
        if len(runs) >= MOST_CONFIRMATIONS or self.is_confirmed(leader):
            return None
        why = "missed the targets" if not _is_met(runs[-1]) else "met them well below the rate that is foretold now"
        return RateAsk(leader, rate_rps, f"the leader once more, since its last run {why}")


def _is_met(trial: Trial) -> bool:
    return trial.attainment is not None and trial.attainment.met


def _fits(schedules: ReplayedSurface, cell: Cell) -> bool:
    try:
        schedules.replay(cell)
    except DoesNotFitError:
        return False
    return True
