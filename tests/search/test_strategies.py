"""What every search has to keep to, whatever the surface: the contract of maitre.search.strategy."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from maitre.calibration import Calibration
from maitre.recording import StepRecord
from maitre.records import Cell, FailedTrial, ServerConfig, Workload
from maitre.search.challenge import Challenge
from maitre.search.fixed_order import every_cell, random_cells
from maitre.search.strategy import Told
from maitre.simulator import StepTime
from maitre.simulator.surface import ReplayedSurface

STEP_TIME = StepTime(a0=0.01, b0=1e-4, c0=1e-6, a1=0.012, b1=1e-4, c1=1e-6, d1=1e-8, knee=100)
PRIOR = Calibration(
    kind="scaled",
    model="m",
    gpu="g",
    source="made up",
    step_time=STEP_TIME,
    covariance=np.diag(np.full(7, 0.04)).tolist(),
    cell_sd=0.04,
    time_sd=0.1,
)
WORKLOAD = Workload(name="w", source="made up", prompt_tokens=[40, 10, 70, 25] * 10, output_tokens=[12, 30, 6, 21] * 10)
GRID = [Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens) for seqs in (4, 8, 16) for tokens in (64, 128, 256)]
BASELINE = GRID[4]
SERVER = ServerConfig(model="m", max_model_len=512, enable_prefix_caching=False, **GRID[-1].model_dump())
SURFACE = ReplayedSurface(WORKLOAD, SERVER, STEP_TIME, lambda _: 1000, started_at=GRID[-1])


def optuna_strategies():
    path = Path(__file__).parents[2] / "benchmarks/optuna_strategies.py"
    spec = importlib.util.spec_from_file_location("optuna_strategies", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STRATEGIES = {
    "challenge": lambda cells, seed: Challenge(cells, BASELINE, SURFACE, PRIOR, seed=seed),
    "every cell": lambda cells, _: every_cell(cells, BASELINE),
    "random cells": lambda cells, seed: random_cells(cells, BASELINE, 6, seed),
    "optuna's tpe": lambda cells, seed: optuna_strategies().tpe(cells, BASELINE, seed),
}
every_strategy = pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)

log_times = st.lists(st.floats(-0.5, 0.5), min_size=len(GRID), max_size=len(GRID))
failing_cells = st.sets(st.sampled_from([cell for cell in GRID if cell != BASELINE]))
many = settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])

MOST_RUNS = 60
"""A search that needs more on nine cells does not end."""


class Server:
    """Answers with given times, as exactly as they are given unless there is noise."""

    def __init__(self, log_times, failing=(), *, records_steps=True, noise=0.0, seed=0):
        self.seconds = dict(zip(GRID, np.exp(log_times).tolist(), strict=True))
        self.failing = failing
        self.records_steps = records_steps
        self.noise = noise
        self.generator = np.random.default_rng(seed)

    def run(self, cell, watch):
        if cell in self.failing:
            failed = FailedTrial(**cell.model_dump(), engine="e", code="crash", message="it died", remedy="none")
            return Told(cell, None, failed=failed)
        seconds = self.seconds[cell] * np.exp(self.generator.normal(0, self.noise))
        if not self.records_steps:
            return Told(cell, seconds)
        columns = SURFACE.replay(cell).columns
        ends = np.cumsum(STEP_TIME.steps_s(columns))
        steps = StepRecord(columns | {"output_end_s": ends * seconds / ends[-1]})
        for num_steps in range(10, steps.num_steps, 10):
            if watch(steps.first(num_steps)):
                return Told(cell, None, steps.first(num_steps))
        return Told(cell, seconds, steps)


def search(strategy, server):
    """Play to the end; returns what was told."""
    story = []
    while (ask := strategy.ask()) is not None:
        assert len(story) < MOST_RUNS
        assert ask.reason
        story.append(server.run(ask.cell, strategy.watch))
        strategy.tell(story[-1])
    return story


@every_strategy
@many
@example(log_times=[0.2, 0.4, -0.4, 0.1, 0.5, 0, 0, 0, 0], records_steps=False, noise=0.02, seed=22)
@given(log_times=log_times, records_steps=st.booleans(), noise=st.sampled_from([0, 0.02]), seed=st.integers(0, 99))
def test_a_search_ends_and_recommends_a_cell_that_it_measured(make, log_times, records_steps, noise, seed):
    strategy = make(GRID, seed)
    story = search(strategy, Server(log_times, records_steps=records_steps, noise=noise, seed=seed))
    assert {told.cell for told in story} <= set(GRID)
    assert strategy.recommend() in {told.cell for told in story if told.duration_s is not None}
    assert strategy.ask() is None  # and it stays at that


@every_strategy
@many
@given(log_times=log_times, failing=failing_cells, records_steps=st.booleans())
def test_a_cell_that_failed_is_neither_asked_for_again_nor_recommended(make, log_times, failing, records_steps):
    strategy = make(GRID, 0)
    story = search(strategy, Server(log_times, failing, records_steps=records_steps))
    failed = [told.cell for told in story if told.failed]
    assert len(failed) == len(set(failed))
    assert strategy.recommend() not in failing


@every_strategy
def test_a_search_ends_when_every_cell_fails(make):
    strategy = make(GRID, 0)
    story = search(strategy, Server([0.0] * 9, failing=GRID))
    assert all(told.failed for told in story)
    assert len({told.cell for told in story}) == len(story)


@every_strategy
def test_the_present_setting_comes_first_and_is_the_answer_as_long_as_nothing_else_is_known(make):
    strategy = make(GRID, 3)
    assert strategy.ask().cell == BASELINE
    strategy.tell(Server([0.0] * 9).run(BASELINE, strategy.watch))
    assert strategy.recommend() == BASELINE


@every_strategy
def test_a_seed_decides_everything(make):
    stories = []
    for _ in range(2):
        strategy = make(GRID, 7)
        story = search(strategy, Server([0.2, 0.4, -0.4, 0.1, 0.5, 0, 0, 0, 0], noise=0.02))
        stories.append([*((told.cell, told.measured_s) for told in story), strategy.recommend()])
    assert stories[0] == stories[1]


@pytest.mark.parametrize("name", ["every cell", "random cells", "optuna's tpe"])
@given(log_times=log_times)
@settings(max_examples=10)
def test_the_plain_searches_measure_no_cell_twice_and_recommend_the_fastest(name, log_times):
    strategy = STRATEGIES[name](GRID, 0)
    server = Server(log_times)
    cells = [told.cell for told in search(strategy, server)]
    assert len(cells) == len(set(cells)) == (6 if name == "random cells" else len(GRID))
    assert server.seconds[strategy.recommend()] == min(server.seconds[cell] for cell in cells)


def test_the_seed_shuffles_a_random_search():
    orders = {tuple(told.cell for told in search(random_cells(GRID, BASELINE, 9, seed), Server([0.0] * 9)))
              for seed in range(20)}  # fmt: skip
    assert len(orders) == 20
    assert {order[0] for order in orders} == {BASELINE}
    assert len({order[1] for order in orders}) > 4


def test_a_sampler_may_propose_a_pair_outside_the_grid_and_it_is_not_measured():
    corner = [cell for cell in GRID if cell.max_num_seqs < 16 or cell.max_num_batched_tokens > 64]
    story = search(STRATEGIES["optuna's tpe"](corner, 0), Server([0.0] * 9))
    assert {told.cell for told in story} == set(corner)
