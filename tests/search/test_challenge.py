"""The search's decisions: what it measures, when it stops, what it cuts short and what it recommends."""

import numpy as np
import pytest

from maitre.errors import DoesNotFitError
from maitre.records import Cell, FailedTrial
from maitre.search.challenge import HOPELESS, LEAST_SHARE, NUM_CALIBRATIONS, Challenge
from maitre.search.strategy import Told
from maitre.simulator.surface import ReplayedSurface

MANY_RUNS = 40


def at(slots, budget):
    return Cell(max_num_seqs=slots, max_num_batched_tokens=budget)


SLOWEST, MIDDLE, FASTEST = at(2, 64), at(4, 128), at(16, 256)
"""By their steps alone; 16x256 takes a quarter of the time of 2x64."""


def failure(cell):
    failed = FailedTrial(**cell.model_dump(), engine="e", code="crash", message="it died", remedy="none")
    return Told(cell, None, failed=failed)


def whole(world, cell, generator=None):
    steps = world.run(cell, generator)
    return Told(cell, float(steps.step_end_s[-1]), steps)


def measure(search, world, ask, generator=None, failing=(), every=60):
    """One run, watched every few steps."""
    if ask.cell in failing:
        return failure(ask.cell)
    steps = world.run(ask.cell, generator)
    for num_steps in range(every, steps.num_steps, every):
        if search.watch(steps.first(num_steps)):
            return Told(ask.cell, None, steps.first(num_steps))
    return Told(ask.cell, float(steps.step_end_s[-1]), steps)


def play(search, world, **options):
    """To the end; returns what was asked and told."""
    story = []
    while (ask := search.ask()) is not None:
        assert len(story) < MANY_RUNS
        told = measure(search, world, ask, **options)
        story.append((ask, told))
        search.tell(told)
    return story


def regret(world, cell, failing=()):
    return 1 - min(world.true_s(c) for c in world.cells if c not in failing) / world.true_s(cell)


@pytest.fixture
def make_search(world, believe):
    def make(baseline=MIDDLE, cells=None, surface=None, prior=None, **options):
        return Challenge(cells or world.cells, baseline, surface or world.server, prior or believe(1.2), **options)

    return make


@pytest.fixture
def noisy(make_world):
    """As servers are: 1 % of noise from run to run and from window to window, and 1 % that each cell has of its own."""

    def make(seed, run_sd=0.01):
        world = make_world(run_sd=run_sd, window_sd=0.01)
        own = np.random.default_rng(seed).normal(0, 0.01, len(world.cells))
        world.own = dict(zip(world.cells, own.tolist(), strict=True))
        return world

    return make


# from the first question to the last


def test_the_present_setting_comes_first_then_what_tells_most_then_the_leader(world, make_search):
    search = make_search(SLOWEST)
    story = play(search, world)
    cells = [ask.cell for ask, _ in story]
    assert cells[0] == SLOWEST
    assert "present" in story[0][0].reason
    assert cells[1] != SLOWEST
    assert "tells most" in story[1][0].reason
    assert search.recommend() in cells
    assert regret(world, search.recommend()) <= 0.02
    assert len(cells) <= 4


def test_it_stops_only_at_a_cell_that_was_measured_and_is_good_with_the_probability_that_was_asked_for(
    noisy, make_search
):
    for seed in range(6):
        world, search = noisy(seed), make_search(seed=seed, delta=0.1)
        story = play(search, world, generator=np.random.default_rng(seed))
        finished = {told.cell for _, told in story if told.duration_s is not None}
        assert search.recommend() == search.leader
        assert search.leader in finished
        assert search.probability(search.leader) >= 0.9
        assert search.ask() is None


def test_in_noise_it_finds_a_good_cell_with_a_fraction_of_the_runs(noisy, make_search):
    regrets, num_runs = [], []
    for seed in range(8):
        world, search = noisy(seed), make_search(SLOWEST, seed=seed)
        num_runs.append(len(play(search, world, generator=np.random.default_rng(seed))))
        regrets.append(regret(world, search.recommend()))
    assert max(regrets) <= 0.02
    assert np.median(num_runs) <= 4


def test_what_noise_hides_is_measured_again(make_world, make_search):
    """Two cells are 1 % apart, and a run is off by 1 %."""
    pair = [at(8, 256), FASTEST]
    num_runs = []
    for seed in (0, 2):
        world = make_world(run_sd=0.01, window_sd=0.01)
        world.own = {pair[0]: np.log(world.true_s(FASTEST) / world.true_s(pair[0])) + 0.01}
        search = make_search(pair[0], cells=pair, seed=seed, epsilon=0.005)
        num_runs.append(len(play(search, world, generator=np.random.default_rng(seed))))
        assert search.recommend() == FASTEST
    assert max(num_runs) > 4


def test_a_cell_that_the_simulator_thinks_too_well_of_is_found_out(make_world, make_search):
    """The simulator's favourite takes a third longer than its steps should."""
    world = make_world()
    world.own = {FASTEST: 0.3}
    search = make_search(at(8, 256))
    cells = [ask.cell for ask, _ in play(search, world)]
    assert FASTEST in cells
    assert search.recommend() == min(world.cells, key=world.true_s) != FASTEST


def test_expectations_are_those_of_the_runs(world, make_search):
    search = make_search()
    play(search, world)
    assert search.expected_s(MIDDLE) == pytest.approx(world.true_s(MIDDLE), rel=0.01)
    assert np.exp(search.log_time_draws(500).mean(axis=0)) == pytest.approx(
        [world.true_s(c) for c in search.cells], rel=0.1
    )


def test_a_single_cell_is_measured_once(world, make_search):
    search = make_search(cells=[MIDDLE])
    assert [ask.cell for ask, _ in play(search, world)] == [MIDDLE]
    assert search.recommend() == MIDDLE


# failures


def test_a_cell_that_failed_is_not_asked_for_again_nor_recommended(world, make_search):
    failing = {cell for cell in world.cells if cell.max_num_seqs == 16}
    search = make_search(SLOWEST)
    story = play(search, world, failing=failing)
    failed = [told.cell for _, told in story if told.failed]
    assert failed
    assert len(failed) == len(set(failed))
    assert regret(world, search.recommend(), failing) <= 0.02
    assert search.recommend() not in failing
    assert all(search.probability(cell) == 0 for cell in failed)


def test_if_all_but_the_present_setting_fail_it_stays(world, make_search):
    search = make_search()
    story = play(search, world, failing=set(world.cells) - {MIDDLE})
    assert len(story) == len(world.cells)
    assert search.recommend() == MIDDLE


def test_a_present_setting_that_fails_is_not_asked_for_again(world, make_search):
    search = make_search()
    story = play(search, world, failing={MIDDLE})
    assert [ask.cell for ask, _ in story].count(MIDDLE) == 1
    assert regret(world, search.recommend()) <= 0.02


def test_nothing_is_left_to_ask_when_every_cell_failed(world, make_search):
    search = make_search()
    assert len(play(search, world, failing=set(world.cells))) == len(world.cells)
    assert search.ask() is None
    assert search.leader in world.cells


def test_a_cell_that_was_measured_and_then_fails_is_the_last_resort(world, make_search):
    search = make_search()
    search.tell(whole(world, MIDDLE))
    search.tell(failure(MIDDLE))
    assert search.recommend() == MIDDLE
    search.tell(whole(world, SLOWEST))
    assert search.recommend() == SLOWEST


def test_cells_whose_pool_is_too_small_are_left_out(surface, make_world, make_search):
    def num_blocks(cell):
        return 5 if cell.max_num_batched_tokens == 256 else 2000

    tight = ReplayedSurface(surface.workload, surface._server, surface._step_time, num_blocks)
    search = make_search(surface=tight)
    assert {cell.max_num_batched_tokens for cell in search.cells} == {64, 128}
    story = play(search, make_world(tight))
    assert all(ask.cell.max_num_batched_tokens < 256 for ask, _ in story)
    with pytest.raises(DoesNotFitError):
        make_search(FASTEST, surface=tight)


# calm


def equal_from_eight_slots_on(make_world):
    world = make_world()
    level = np.log(world.true_s(FASTEST))
    world.own = {c: level - np.log(world.true_s(c)) for c in world.cells if c.max_num_seqs >= 8}
    return world


@pytest.mark.parametrize("slots", [8, 16])
def test_among_cells_that_are_surely_good_the_calmest_is_recommended(make_world, make_search, slots):
    world = equal_from_eight_slots_on(make_world)
    pair = [FASTEST, at(8, 256)]
    search = make_search(
        FASTEST, cells=pair, epsilon=0.1, calm=lambda cell, _: 0.01 if cell.max_num_seqs == slots else 0.02
    )
    for cell in pair:
        search.tell(whole(world, cell))
    assert search.sure_and_measured == pair
    assert search.ask() is None
    assert search.recommend() == search.leader
    assert search.recommend().max_num_seqs == slots


def test_a_little_calmer_is_not_worth_a_further_run(make_world, make_search):
    world = equal_from_eight_slots_on(make_world)
    search = make_search(FASTEST, epsilon=0.1, calm=lambda cell, _: 0.1 + 0.001 * cell.max_num_seqs)
    measured = {told.cell for _, told in play(search, world)}
    assert search.recommend() in measured
    assert len(measured) == NUM_CALIBRATIONS


def test_calm_does_not_count_for_cells_that_are_too_slow(world, make_search):
    search = make_search(calm=lambda cell, _: 0.01 * cell.max_num_seqs)
    play(search, world)
    assert search.recommend().max_num_seqs == 16


def test_latencies_are_judged_once_for_each_state_of_knowledge(make_world, make_search):
    asked = []
    world = equal_from_eight_slots_on(make_world)
    search = make_search(FASTEST, epsilon=0.1, calm=lambda cell, _: asked.append(cell) or 0.01)
    play(search, world)
    asked.clear()
    search.tell(whole(world, FASTEST))
    for _ in range(5):
        search.ask()
    assert len(asked) == len(set(asked))


# cutting runs short


def test_a_run_that_cannot_win_any_more_is_cut_short(make_world, make_search):
    world = make_world()
    world.own = {FASTEST: 0.3}
    search = make_search(at(8, 256))
    cut = [told for _, told in play(search, world) if told.duration_s is None]
    assert cut
    for told in cut:
        share = told.steps.columns["num_decodes"].sum() / world.server.workload.output_tokens.sum()
        assert LEAST_SHARE <= share < 0.7
        assert regret(world, told.cell) > 0.02


def test_calibration_runs_and_first_quarters_are_never_cut_short(make_world, make_search):
    world = make_world()
    world.own = {FASTEST: 1.0}
    search = make_search(FASTEST)
    for cell in (SLOWEST, at(8, 256)):
        search.ask()
        assert not any(search.watch(world.run(FASTEST, share=share)) for share in (0.1, 0.5, 0.9))
        search.tell(whole(world, cell))
    search._asked = FASTEST
    assert not search.watch(world.run(FASTEST, share=0.1))
    assert search.watch(world.run(FASTEST, share=0.5))


def test_a_run_that_may_still_win_goes_on(noisy, make_search):
    for seed in range(3):
        world, search = noisy(seed), make_search(SLOWEST, seed=seed)
        story = play(search, world, generator=np.random.default_rng(seed))
        best = min(world.cells, key=world.true_s)
        assert all(told.duration_s is not None for _, told in story if told.cell == best)


def test_a_run_with_a_small_chance_goes_on(make_world, make_search):
    world = make_world()
    cell = at(16, 64)
    world.own = {cell: -0.02}  # it takes 2.4 % longer than the best, where 2 % would be good
    search = make_search()
    for other in (MIDDLE, FASTEST, at(8, 64)):
        search.tell(whole(world, other))
    assert HOPELESS < search.probability(cell) < 0.3
    search._asked = cell
    assert not any(search.watch(world.run(cell, share=share)) for share in (0.4, 0.6, 0.9))


def test_a_run_that_was_cut_short_does_not_count_as_measured(world, make_search):
    search = make_search()
    search.tell(whole(world, MIDDLE))
    search.tell(Told(FASTEST, None, world.run(FASTEST, share=0.9)))
    assert search.leader.max_num_seqs == 16
    assert search.recommend() == MIDDLE
    assert search.ask().cell.max_num_seqs == 16


# the same again


def test_a_seed_decides_everything(noisy, make_search):
    def story(seed):
        search = make_search(SLOWEST, seed=seed)
        played = play(search, noisy(3), generator=np.random.default_rng(0))
        return [(ask.cell, ask.reason, told.measured_s) for ask, told in played], search.log_time_draws(3).tolist()

    assert story(1) == story(1)
    assert story(1) != story(2)


def test_how_often_a_run_was_looked_at_changes_nothing(noisy, make_search):
    def story(every):
        search = make_search(SLOWEST)
        played = play(search, noisy(3), generator=np.random.default_rng(0), every=every)
        assert all(told.duration_s is not None for _, told in played)
        return [ask for ask, _ in played], search.probability(search.leader)

    assert story(60) == story(150)


def test_a_search_that_was_interrupted_goes_on_where_it_was(noisy, make_search):
    world = noisy(4)
    search = make_search(SLOWEST)
    story = play(search, world, generator=np.random.default_rng(0))
    resumed = make_search(SLOWEST)
    for _, told in story[:-1]:
        resumed.tell(told)
    assert resumed.ask().cell == story[-1][0].cell
