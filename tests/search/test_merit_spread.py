"""How far merits may be off: curves through a few trials, for the step time, the cell and the traffic."""

import numpy as np
import pytest

from maitre.calibration import shipped_calibrations
from maitre.records import Cell
from maitre.search.merit_spread import MeritSpread, contenders, draw_changes, find_spread, own_scale

SURE = shipped_calibrations()[0].model_copy(update={"covariance": ((0.0,) * 7,) * 7, "cell_sd": 0.0})
CELLS = [Cell(max_num_seqs=s, max_num_batched_tokens=2048) for s in (64, 72, 4096)]


def draws(spread_of, calibration=SURE, cells=CELLS):
    return draw_changes(cells, spread_of, calibration, 8000, np.random.default_rng(0))


def spread(below=(0.0, 0.0), above=(0.0, 0.0), samples=(0.0, 0.0, 0.0, 0.0)):
    return MeritSpread(np.array(below), np.array(above), np.array(samples))


def test_cells_near_the_best_contend_and_the_baseline_always_does():
    merits = dict(zip(CELLS, (10.0, 9.5, 3.0), strict=True))
    assert contenders(merits, CELLS[2]) == [CELLS[0], CELLS[1], CELLS[2]]
    assert contenders(merits, CELLS[0]) == [CELLS[0], CELLS[1]]


def test_cells_without_merit_do_not_contend():
    assert contenders(dict.fromkeys(CELLS, 0.0), CELLS[0]) == []
    assert contenders({CELLS[0]: 0.0, CELLS[1]: 5.0, CELLS[2]: 1.0}, CELLS[0]) == [CELLS[1]]


def test_both_sides_of_every_direction_are_tried():
    directions = np.array([[0.1, 0, 0, 0, 0, 0, 0]])
    found = find_spread(
        4.0, lambda step: 4.0 * np.exp(-2 * step[0] - step[6]), lambda number: 4.0 * 1.1**number, directions, 0.05
    )
    assert found.below == pytest.approx([-0.2, -0.15])  # its own direction changes all coefficients
    assert found.above == pytest.approx([-0.2, -0.15])
    assert found.samples == pytest.approx(np.log(1.1) * np.arange(4))


def test_a_target_that_comes_out_of_reach_is_a_steep_loss():
    found = find_spread(
        4.0, lambda step: 4.0 if step[0] < 0 else 0.0, lambda _: 4.0, np.array([[0.1, 0, 0, 0, 0, 0, 0]]), 0.05
    )
    assert found.below == pytest.approx([0, 0])
    assert found.above == pytest.approx([np.log(0.01)] * 2)


def test_what_cells_share_cancels_in_their_ratio():
    off = draws(lambda _: spread(below=(-0.2, 0), above=(-0.2, 0)))
    assert off.std(axis=0) == pytest.approx([0.2] * 3, rel=0.03)
    assert (off[:, 0] - off[:, 1]).std() < 1e-12


def test_a_bend_makes_the_spread_lopsided():
    off = draws(lambda _: spread(below=(-0.1, 0), above=(-1.0, 0)))[:, 0]
    low, high = np.percentile(off, [2.5, 97.5])
    assert low == pytest.approx(-1.96, rel=0.1)
    assert high == pytest.approx(0.196, rel=0.1)


def test_what_is_a_cells_own_goes_by_its_slope():
    vague = SURE.model_copy(update={"cell_sd": 0.02})
    slope = -3.0 * own_scale(vague)  # three per cent of merit for one per cent of time
    off = draws(lambda _: spread(below=(0, slope), above=(0, slope)), vague)
    assert off.std(axis=0) == pytest.approx([0.06] * 3, rel=0.05)
    assert abs(np.corrcoef(off.T)[0, 2]) < 0.1
    assert np.corrcoef(off.T)[0, 1] > 0.9


def test_a_few_samples_give_a_t_distribution_with_their_spread():
    samples = np.array([-0.03, -0.01, 0.01, 0.03])
    off = draws(lambda _: spread(samples=samples))[:, 0]
    low, high = np.percentile(off, [2.5, 97.5])
    assert high == pytest.approx(3.182 * samples.std(ddof=1), rel=0.1)  # t with 3 degrees of freedom
    assert low == pytest.approx(-high, rel=0.15)


def test_a_sample_that_moves_two_cells_alike_does_not_move_their_ratio():
    samples = np.array([-0.03, -0.01, 0.01, 0.03])
    off = draws(lambda cell: spread(samples=samples + (0.5 if cell == CELLS[0] else 0)))
    assert (off[:, 0] - off[:, 1]).std() < 1e-12
