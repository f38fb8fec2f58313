"""Which of the good cells is recommended, and which runs are cut short."""

import numpy as np
import pytest

from maitre.records import Cell
from maitre.search.challenge import HOPELESS, LEAST_SHARE, NUM_CALIBRATIONS
from maitre.search.strategy import Told


def at(slots, budget):
    return Cell(max_num_seqs=slots, max_num_batched_tokens=budget)


SLOWEST, MIDDLE, FASTEST = at(2, 64), at(4, 128), at(16, 256)
"""By their steps alone; 16x256 takes a quarter of the time of 2x64."""


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
        search.tell(world.whole(cell))
    assert search.sure_and_measured == pair
    assert search.ask() is None
    assert search.recommend() == search.leader
    assert search.recommend().max_num_seqs == slots


def test_a_little_calmer_is_not_worth_a_further_run(make_world, make_search):
    world = equal_from_eight_slots_on(make_world)
    search = make_search(FASTEST, epsilon=0.1, calm=lambda cell, _: 0.1 + 0.001 * cell.max_num_seqs)
    measured = {told.cell for _, told in world.play(search)}
    assert search.recommend() in measured
    assert len(measured) == NUM_CALIBRATIONS


def test_calm_does_not_count_for_cells_that_are_too_slow(world, make_search):
    search = make_search(calm=lambda cell, _: 0.01 * cell.max_num_seqs)
    world.play(search)
    assert search.recommend().max_num_seqs == 16


def test_latencies_are_judged_once_for_each_state_of_knowledge(make_world, make_search):
    asked = []
    world = equal_from_eight_slots_on(make_world)
    search = make_search(FASTEST, epsilon=0.1, calm=lambda cell, _: asked.append(cell) or 0.01)
    world.play(search)
    asked.clear()
    search.tell(world.whole(FASTEST))
    for _ in range(5):
        search.ask()
    assert len(asked) == len(set(asked))


# cutting runs short


def test_a_run_that_cannot_win_any_more_is_cut_short(make_world, make_search):
    world = make_world()
    world.own = {FASTEST: 0.3}
    search = make_search(at(8, 256))
    cut = [told for _, told in world.play(search) if told.duration_s is None]
    assert cut
    for told in cut:
        share = told.steps.columns["num_decodes"].sum() / world.server.workload.output_tokens.sum()
        assert LEAST_SHARE <= share < 0.7
        assert world.regret(told.cell) > 0.02


def test_calibration_runs_and_first_quarters_are_never_cut_short(make_world, make_search):
    world = make_world()
    world.own = {FASTEST: 1.0}
    search = make_search(FASTEST)
    for cell in (SLOWEST, at(8, 256)):
        search.ask()
        assert not any(search.watch(world.run(FASTEST, share=share)) for share in (0.1, 0.5, 0.9))
        search.tell(world.whole(cell))
    search._asked = FASTEST
    assert not search.watch(world.run(FASTEST, share=0.1))
    assert search.watch(world.run(FASTEST, share=0.5))


def test_a_run_that_may_still_win_goes_on(noisy, make_search):
    for seed in range(3):
        world, search = noisy(seed), make_search(SLOWEST, seed=seed)
        story = world.play(search, generator=np.random.default_rng(seed))
        best = min(world.cells, key=world.true_s)
        assert all(told.duration_s is not None for _, told in story if told.cell == best)


def test_a_run_with_a_small_chance_goes_on(make_world, make_search):
    world = make_world()
    cell = at(16, 64)
    world.own = {cell: -0.02}  # it takes 2.4 % longer than the best, where 2 % would be good
    search = make_search()
    for other in (MIDDLE, FASTEST, at(8, 64)):
        search.tell(world.whole(other))
    assert HOPELESS < search.probability(cell) < 0.3
    search._asked = cell
    assert not any(search.watch(world.run(cell, share=share)) for share in (0.4, 0.6, 0.9))


def test_a_run_that_was_cut_short_does_not_count_as_measured(world, make_search):
    search = make_search()
    search.tell(world.whole(MIDDLE))
    search.tell(Told(FASTEST, None, world.run(FASTEST, share=0.9)))
    assert search.leader.max_num_seqs == 16
    assert search.recommend() == MIDDLE
    assert search.ask().cell.max_num_seqs == 16
