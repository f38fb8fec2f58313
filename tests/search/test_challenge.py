"""The search's decisions: what it measures, when it stops, and what failures do to it."""

import numpy as np
import pytest

from maitre.errors import DoesNotFitError
from maitre.records import Cell
from maitre.simulator.surface import ReplayedSurface


def at(slots, budget):
    return Cell(max_num_seqs=slots, max_num_batched_tokens=budget)


SLOWEST, MIDDLE, FASTEST = at(2, 64), at(4, 128), at(16, 256)
"""By their steps alone; 16x256 takes a quarter of the time of 2x64."""


# from the first question to the last


def test_the_present_setting_comes_first_then_what_tells_most_then_the_leader(world, make_search):
    search = make_search(SLOWEST)
    story = world.play(search)
    cells = [ask.cell for ask, _ in story]
    assert cells[0] == SLOWEST
    assert "present" in story[0][0].reason
    assert cells[1] != SLOWEST
    assert "tells most" in story[1][0].reason
    assert search.recommend() in cells
    assert world.regret(search.recommend()) <= 0.02
    assert len(cells) <= 4


def test_it_stops_only_at_a_cell_that_was_measured_and_is_good_with_the_probability_that_was_asked_for(
    noisy, make_search
):
    for seed in range(6):
        world, search = noisy(seed), make_search(seed=seed, delta=0.1)
        story = world.play(search, generator=np.random.default_rng(seed))
        finished = {told.cell for _, told in story if told.duration_s is not None}
        assert search.recommend() == search.leader
        assert search.leader in finished
        assert search.probability(search.leader) >= 0.9
        assert search.ask() is None


def test_in_noise_it_finds_a_good_cell_with_a_fraction_of_the_runs(noisy, make_search):
    regrets, num_runs = [], []
    for seed in range(8):
        world, search = noisy(seed), make_search(SLOWEST, seed=seed)
        num_runs.append(len(world.play(search, generator=np.random.default_rng(seed))))
        regrets.append(world.regret(search.recommend()))
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
        num_runs.append(len(world.play(search, generator=np.random.default_rng(seed))))
        assert search.recommend() == FASTEST
    assert max(num_runs) > 4


def test_a_cell_that_the_simulator_thinks_too_well_of_is_found_out(make_world, make_search):
    """The simulator's favourite takes a third longer than its steps should."""
    world = make_world()
    world.own = {FASTEST: 0.3}
    search = make_search(at(8, 256))
    cells = [ask.cell for ask, _ in world.play(search)]
    assert FASTEST in cells
    assert search.recommend() == min(world.cells, key=world.true_s) != FASTEST


def test_expectations_are_those_of_the_runs(world, make_search):
    search = make_search()
    world.play(search)
    assert search.expected_s(MIDDLE) == pytest.approx(world.true_s(MIDDLE), rel=0.01)
    assert np.exp(search.log_time_draws(500).mean(axis=0)) == pytest.approx(
        [world.true_s(c) for c in search.cells], rel=0.1
    )


def test_a_single_cell_is_measured_once(world, make_search):
    search = make_search(cells=[MIDDLE])
    assert [ask.cell for ask, _ in world.play(search)] == [MIDDLE]
    assert search.recommend() == MIDDLE


# failures


def test_a_cell_that_failed_is_not_asked_for_again_nor_recommended(world, make_search):
    failing = {cell for cell in world.cells if cell.max_num_seqs == 16}
    search = make_search(SLOWEST)
    story = world.play(search, failing=failing)
    failed = [told.cell for _, told in story if told.failed]
    assert failed
    assert len(failed) == len(set(failed))
    assert world.regret(search.recommend(), failing) <= 0.02
    assert search.recommend() not in failing
    assert all(search.probability(cell) == 0 for cell in failed)


def test_if_all_but_the_present_setting_fail_it_stays(world, make_search):
    search = make_search()
    story = world.play(search, failing=set(world.cells) - {MIDDLE})
    assert len(story) == len(world.cells)
    assert search.recommend() == MIDDLE


def test_a_present_setting_that_fails_is_not_asked_for_again(world, make_search):
    search = make_search()
    story = world.play(search, failing={MIDDLE})
    assert [ask.cell for ask, _ in story].count(MIDDLE) == 1
    assert world.regret(search.recommend()) <= 0.02


def test_nothing_is_left_to_ask_when_every_cell_failed(world, make_search):
    search = make_search()
    assert len(world.play(search, failing=set(world.cells))) == len(world.cells)
    assert search.ask() is None
    assert search.leader in world.cells


def test_a_cell_that_was_measured_and_then_fails_is_the_last_resort(world, make_search):
    search = make_search()
    search.tell(world.whole(MIDDLE))
    search.tell(world.measure(search, MIDDLE, failing={MIDDLE}))
    assert search.recommend() == MIDDLE
    search.tell(world.whole(SLOWEST))
    assert search.recommend() == SLOWEST


def test_cells_whose_pool_is_too_small_are_left_out(surface, make_world, make_search):
    def num_blocks(cell):
        return 5 if cell.max_num_batched_tokens == 256 else 2000

    tight = ReplayedSurface(surface.workload, surface._server, surface._step_time, num_blocks)
    search = make_search(surface=tight)
    assert {cell.max_num_batched_tokens for cell in search.cells} == {64, 128}
    story = make_world(tight).play(search)
    assert all(ask.cell.max_num_batched_tokens < 256 for ask, _ in story)
    with pytest.raises(DoesNotFitError):
        make_search(FASTEST, surface=tight)


# the same again


def test_a_seed_decides_everything(noisy, make_search):
    def story(seed):
        search = make_search(SLOWEST, seed=seed)
        played = noisy(3).play(search, generator=np.random.default_rng(0))
        return [(ask.cell, ask.reason, told.measured_s) for ask, told in played], search.log_time_draws(3).tolist()

    assert story(1) == story(1)
    assert story(1) != story(2)


def test_how_often_a_run_was_looked_at_changes_nothing(noisy, make_search):
    def story(every):
        search = make_search(SLOWEST)
        played = noisy(3).play(search, generator=np.random.default_rng(0), every=every)
        assert all(told.duration_s is not None for _, told in played)
        return [ask for ask, _ in played], search.probability(search.leader)

    assert story(60) == story(150)


def test_a_search_that_was_interrupted_goes_on_where_it_was(noisy, make_search):
    world = noisy(4)
    search = make_search(SLOWEST)
    story = world.play(search, generator=np.random.default_rng(0))
    resumed = make_search(SLOWEST)
    for _, told in story[:-1]:
        resumed.tell(told)
    assert resumed.ask().cell == story[-1][0].cell
