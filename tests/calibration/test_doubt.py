"""Directions in which a step time may be off, and errors of single cells."""

import numpy as np
import pytest

from maitre.calibration.doubt import draw_cell_offsets, leading_directions
from maitre.records import Cell

HALVES = np.array([[1.0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1.0, 0, 0, 0]])
"""One cell spends all its time on a0, one on a1."""


def test_the_directions_that_matter_come_first():
    covariance = np.diag([0.01, 1.0, 1.0, 0.04, 1.0, 1.0, 1.0])  # large where no time is spent
    directions = leading_directions(covariance, HALVES, 2)
    assert np.abs(directions[0]) == pytest.approx([0, 0, 0, 0.2, 0, 0, 0], abs=1e-9)
    assert np.abs(directions[1]) == pytest.approx([0.1, 0, 0, 0, 0, 0, 0], abs=1e-9)


def test_they_carry_the_covariance_of_the_cells_times():
    generator = np.random.default_rng(0)
    root = generator.normal(size=(7, 7))
    covariance = root @ root.T
    directions = leading_directions(covariance, HALVES, 2)
    effects = HALVES @ directions.T
    assert effects @ effects.T == pytest.approx(HALVES @ covariance @ HALVES.T)


def test_one_direction_is_enough_for_an_error_that_all_share():
    assert leading_directions(np.full((7, 7), 0.04), HALVES, 2) == pytest.approx(np.full((1, 7), 0.2)) or (
        leading_directions(np.full((7, 7), 0.04), HALVES, 2) == pytest.approx(np.full((1, 7), -0.2))
    )


def test_a_sure_step_time_has_no_directions():
    assert leading_directions(np.zeros((7, 7)), HALVES, 2).shape == (0, 7)


def test_neighbours_err_alike():
    cells = [Cell(max_num_seqs=s, max_num_batched_tokens=2048) for s in (64, 72, 4096)]
    offsets = draw_cell_offsets(cells, 0.02, 4000, np.random.default_rng(0))
    assert offsets.std(axis=0) == pytest.approx([0.02] * 3, rel=0.1)
    correlation = np.corrcoef(offsets.T)
    assert correlation[0, 1] > 0.95
    assert abs(correlation[0, 2]) < 0.1
