"""Traffic over time, in the simulator: the highest rate within latency targets, or the least latency at its own rate.

Beside the surface a few cells that may win are tried with other step times and other samples of the traffic, which says
how far their merits may be off (`maitre.search.merit_spread`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import Calibration, calibration_for, step_time_factors
from maitre.calibration.doubt import leading_directions
from maitre.errors import DoesNotFitError, UsageError
from maitre.records import Cell, KvBudget, Objective, Study, Trial, Workload
from maitre.search.merit_doubts import doubt_merits
from maitre.search.merit_spread import (
    NUM_DIRECTIONS,
    NUM_SAMPLES,
    MeritSpread,
    contenders,
    draw_changes,
    find_spread,
    own_scale,
)
from maitre.search.recommend_merit import recommend_by
from maitre.setup import Setup, check_lengths
from maitre.slo import LatencyTarget
from maitre.trial.metrics import summarize
from maitre.trial.paced import PacedSurface
from maitre.trial.rate_surface import RateSurface, in_reach, nearest
from maitre.tune import DEFAULT_GOAL, NUM_DRAWS, Goal, build_study
from maitre.workload.arrivals import own_rate_rps

COARSE = 0.03
"""Tolerance of the searches for other step times and samples: their crossings are interpolated in between."""

Array = NDArray[np.float64]
OnTrial = Callable[[Trial], None]


@dataclass(frozen=True, slots=True)
class _Question:
    """One traffic on one setup; the cells of the grid that leave room for a KV pool."""

    workload: Workload
    setup: Setup
    calibration: Calibration
    budgets: dict[Cell, KvBudget]
    infeasible: dict[Cell, DoesNotFitError]
    goal: Goal

    @classmethod
    def of(cls, workload: Workload, setup: Setup, cells: Sequence[Cell], goal: Goal) -> _Question:
        check_lengths(workload, setup.server)
        budgets, infeasible = setup.kv_budgets([*cells, setup.server.cell])
        per_token = next(iter(budgets.values())).kv_bytes_per_token or 0
        calibration = calibration_for(setup.model, setup.gpu, setup.server, per_token)
        return cls(workload, setup, calibration, budgets, infeasible, goal)

    @property
    def coefficients(self) -> Array:
        return self.calibration.step_time.coefficients

    def samples(self) -> list[PacedSurface]:
        """The traffic at hand, and further samples of it."""
        here = PacedSurface(
            self.workload, self.setup.server, self.calibration.step_time,
            lambda cell: self.budgets[cell].num_gpu_blocks, seed=self.goal.seed,
            factors=step_time_factors(self.setup.model, self.setup.gpu, self.setup.server),
        )  # fmt: skip
        return [here, *(here.resampled(self.goal.seed + number) for number in range(1, NUM_SAMPLES + 1))]


@dataclass(frozen=True, slots=True)
class _Answered:
    """The surface, and what one more replay would say."""

    objective: Objective
    trials: dict[Cell, Trial]
    merits: dict[Cell, float]
    merit_of: Callable[[int, Cell, Array, float], float]
    """Of a sample of the traffic (0: the one at hand), a cell and coefficients of shape (7,); from a guess."""
    shares_of: Callable[[Cell], Array]
    """`PacedSurface.time_shares` where the merit was found."""


def tune_rate(
    workload: Workload,
    setup: Setup,
    cells: Sequence[Cell],
    targets: Sequence[LatencyTarget],
    goal: Goal = DEFAULT_GOAL,
    *,
    on_trial: OnTrial = lambda _: None,
) -> Study:
    """Find the highest rate of every cell within the targets, and recommend the cell with the highest.

    Args:
        workload: the traffic; its own arrivals are made faster or slower, and without any it comes as a Poisson
            process.
        setup: what is to be served, on what; its dials are the present setting, which is tried too.
        cells: the grid.
        targets: at least one.
        goal: how good, and how sure.
        on_trial: is told of every finished cell.

    Raises:
        InputError: requests that the server would refuse.
        UsageError: the arrivals have no rate.
        DoesNotFitError: no cell leaves room for the KV pool.
    """
    asked = _Question.of(workload, setup, cells, goal)
    surfaces = [RateSurface(paced, targets) for paced in asked.samples()]
    found: dict[Cell, float] = {}
    crossings: dict[Cell, float] = {}

    def answer(cell: Cell) -> Trial:
        near = nearest(cell, found)
        highest = surfaces[0].find(cell, asked.coefficients, found[near] if near else None)
        found[cell], crossings[cell] = highest.rate_rps, highest.crossing_rps
        return surfaces[0].trial(highest)

    trials = _answer_all(asked, answer, on_trial)
    objective = Objective(
        kind="rate", targets=tuple(str(target) for target in targets), own_rate_rps=own_rate_rps(workload)
    )
    answered = _Answered(
        objective, trials, crossings,
        merit_of=lambda n, cell, theta, guess: surfaces[n].find(cell, theta, guess, tolerance=COARSE).crossing_rps,
        shares_of=lambda cell: surfaces[0].paced.time_shares(cell, asked.coefficients, crossings[cell]),
    )  # fmt: skip
    return _conclude(asked, answered)


def tune_latency(
    workload: Workload,
    setup: Setup,
    cells: Sequence[Cell],
    targets: Sequence[LatencyTarget],
    goal: Goal = DEFAULT_GOAL,
    *,
    on_trial: OnTrial = lambda _: None,
) -> Study:
    """Run every cell at the traffic's own times, and recommend the one with the least latency.

    Args:
        workload: the traffic, with arrival times.
        setup: as for `tune_rate`, as are the next ones.
        cells: the grid.
        targets: the first names the latency; cells that miss any do not count unless all do. None: p95 of end-to-end.
        goal: how good, and how sure.
        on_trial: is told of every finished cell.

    Raises:
        InputError: requests that the server would refuse.
        UsageError: there are no arrival times, or no request has this latency.
        DoesNotFitError: no cell leaves room for the KV pool.
    """
    rate_rps = own_rate_rps(workload)
    if rate_rps is None:
        raise UsageError(
            f"the latency at the traffic's own rate needs arrival times, and {workload.name} has none",
            "name the table's column with --time-column",
        )
    if targets and targets[0].metric in {"itl", "tpot"} and int(workload.output_tokens.max()) < 2:
        raise UsageError(f"no request has a second token, and so none has {targets[0].metric}", "choose ttft or e2e")
    asked, own_rps = _Question.of(workload, setup, cells, goal), rate_rps
    samples = asked.samples()
    names = tuple(str(target) for target in targets)
    objective = Objective(kind="latency", targets=names, own_rate_rps=own_rps)

    def run(n: int, cell: Cell, theta: Array) -> Trial:
        return summarize(samples[n].run(cell, theta, own_rps), workload, engine="simulated", targets=targets)

    trials = _answer_all(asked, lambda cell: run(0, cell, asked.coefficients), on_trial)
    answered = _Answered(
        objective, trials, {cell: objective.merit(trial) for cell, trial in trials.items()},
        merit_of=lambda n, cell, theta, _: objective.merit(run(n, cell, theta)),
        shares_of=lambda cell: samples[0].time_shares(cell, asked.coefficients, own_rps),
    )  # fmt: skip
    return _conclude(asked, answered)


def _answer_all(asked: _Question, answer: Callable[[Cell], Trial], on_trial: OnTrial) -> dict[Cell, Trial]:
    """One trial a cell, in the order of the grid; cells that cannot hold a request are set aside."""
    trials = {}
    for cell in in_reach(asked.budgets):
        try:
            trials[cell] = answer(cell)
            on_trial(trials[cell])
        except DoesNotFitError as error:
            asked.infeasible[cell] = error
    if asked.setup.server.cell in asked.infeasible:
        raise asked.infeasible[asked.setup.server.cell]
    return {cell: trials[cell] for cell in asked.budgets if cell in trials}


def _conclude(asked: _Question, answered: _Answered) -> Study:
    baseline, goal, objective = asked.setup.server.cell, asked.goal, answered.objective
    trials = list(answered.trials.values())
    draws = _draw(asked, answered, contenders(answered.merits, baseline))
    answer = recommend_by(objective, trials, baseline, draws, epsilon=goal.epsilon, delta=goal.delta)
    return build_study(
        "simulated", asked.workload, asked.setup.server, trials, answer, gpu=asked.setup.gpu.name,
        calibration=asked.calibration.summary, infeasible=asked.infeasible, budgets=asked.budgets, open_loop=True,
        doubts=doubt_merits(objective, trials, answer), objective=objective,
    )  # fmt: skip


def _draw(asked: _Question, answered: _Answered, tried: Sequence[Cell]) -> Array:
    """How far the cells' merits may be off, shape (draws, cells)."""
    cells = list(answered.trials)
    if not tried:
        return np.zeros((1, len(cells)))
    shares = {cell: answered.shares_of(cell) for cell in tried}
    covariance = np.array(asked.calibration.covariance)
    directions = leading_directions(covariance, np.stack(list(shares.values())), NUM_DIRECTIONS)
    spreads = {cell: _spread(asked, answered, cell, directions, shares[cell]) for cell in tried}
    generator = np.random.default_rng(asked.goal.seed)
    return draw_changes(cells, lambda cell: _of_nearest(spreads, cell), asked.calibration, NUM_DRAWS, generator)


def _spread(asked: _Question, answered: _Answered, cell: Cell, directions: Array, shares: Array) -> MeritSpread:
    merit, theta = answered.merits[cell], asked.coefficients
    return find_spread(
        merit,
        lambda step: answered.merit_of(0, cell, theta * np.exp(step), merit * float(np.exp(-shares @ step))),
        lambda number: answered.merit_of(number + 1, cell, theta, merit),
        directions,
        own_scale(asked.calibration),
    )


def _of_nearest(spreads: Mapping[Cell, MeritSpread], cell: Cell) -> MeritSpread:
    near = nearest(cell, spreads)
    assert near is not None
    return spreads[near]
