"""Optuna's samplers behind the seam of `maitre.search.strategy`: the baselines of benchmarks/search.py.

Both dials are given as the place in the list of their values, so that a sampler sees the doublings as equal steps. All
other settings are Optuna's own, but for the number of random cells at the start: its default of 10 would leave a grid
of 25 cells, with the present setting measured first, mostly to chance.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import optuna
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from maitre.recording import StepRecord
from maitre.records import Cell
from maitre.search.strategy import Ask, Told

NUM_RANDOM_CELLS = 4
"""Cells before a sampler's model is used, the present setting included."""

MAX_PROPOSALS = 5
"""A sampler may propose a known cell again. It is told the known result, and after so many proposals in a row a random
cell that is not known yet is measured: no measurement is wasted on its repetitions."""


def tpe(cells: Sequence[Cell], baseline: Cell, seed: int) -> OptunaStrategy:
    """The tree-structured Parzen estimator, with both dials in one model."""
    with warnings.catch_warnings(category=optuna.exceptions.ExperimentalWarning, action="ignore"):
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=NUM_RANDOM_CELLS, multivariate=True)
    return OptunaStrategy(cells, baseline, sampler, seed)


def gaussian_process(cells: Sequence[Cell], baseline: Cell, seed: int) -> OptunaStrategy:
    """A Gaussian process with expected improvement. Needs torch."""
    with warnings.catch_warnings(category=optuna.exceptions.ExperimentalWarning, action="ignore"):
        sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=NUM_RANDOM_CELLS)
    return OptunaStrategy(cells, baseline, sampler, seed)


class OptunaStrategy:
    """Measures the present setting, then what the sampler proposes, no cell twice; recommends the fastest so far.

    It has no stopping rule: it goes on until every cell is known.
    """

    def __init__(self, cells: Sequence[Cell], baseline: Cell, sampler: optuna.samplers.BaseSampler, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(sampler=sampler)
        self._generator = np.random.default_rng(seed)
        self._seqs = sorted({cell.max_num_seqs for cell in cells})
        self._tokens = sorted({cell.max_num_batched_tokens for cell in cells})
        self._unknown = list(cells)
        self._known_s: dict[Cell, float | None] = {}
        self._trial: Trial | None = None
        self._enqueue(baseline)

    def ask(self) -> Ask | None:
        """What the sampler proposes; None when every cell is known."""
        if not self._unknown:
            return None
        for _ in range(MAX_PROPOSALS):
            trial = self._propose()
            cell = self._cell(trial)
            if cell in self._unknown:
                self._trial = trial
                return Ask(cell, "proposed")
            self._answer(trial, self._known_s.get(cell))
        cell = self._unknown[self._generator.integers(len(self._unknown))]
        self._enqueue(cell)
        self._trial = self._propose()
        return Ask(cell, "at random: only known cells were proposed")

    def watch(self, steps: StepRecord) -> bool:  # noqa: ARG002 - the seam's
        """No run is cut short."""
        return False

    def tell(self, told: Told) -> None:
        """Hand the logarithm of the time on to the sampler; a failed cell is a failed trial."""
        self._unknown.remove(told.cell)
        self._known_s[told.cell] = told.duration_s
        if self._trial is not None:
            self._answer(self._trial, told.duration_s)
        self._trial = None

    def recommend(self) -> Cell:
        """The fastest cell so far."""
        return min((s, i, cell) for i, (cell, s) in enumerate(self._known_s.items()) if s is not None)[2]

    def _propose(self) -> Trial:
        return self._study.ask(
            {"seqs": IntDistribution(0, len(self._seqs) - 1), "tokens": IntDistribution(0, len(self._tokens) - 1)}
        )

    def _enqueue(self, cell: Cell) -> None:
        places = {
            "seqs": self._seqs.index(cell.max_num_seqs),
            "tokens": self._tokens.index(cell.max_num_batched_tokens),
        }
        self._study.enqueue_trial(places)

    def _cell(self, trial: Trial) -> Cell:
        return Cell(
            max_num_seqs=self._seqs[trial.params["seqs"]],
            max_num_batched_tokens=self._tokens[trial.params["tokens"]],
        )

    def _answer(self, trial: Trial, duration_s: float | None) -> FrozenTrial:
        if duration_s is None:  # it failed, or it is a pair that is not in the grid
            return self._study.tell(trial, state=TrialState.FAIL)
        return self._study.tell(trial, float(np.log(duration_s)))
