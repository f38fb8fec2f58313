"""A calibration draws coefficients around its own, and says in a sentence how far to trust it."""

import numpy as np
import pytest
from pydantic import ValidationError

from maitre.calibration import shipped_calibrations

MEASURED = shipped_calibrations()[0]


def test_draws_are_spread_as_the_covariance_says():
    draws = MEASURED.draw_coefficients(20_000, np.random.default_rng(0))
    assert draws.shape == (20_000, 7)
    assert np.all(draws >= 0)
    logs = np.log(draws / MEASURED.step_time.coefficients)
    assert logs.mean(axis=0) == pytest.approx(np.zeros(7), abs=0.02)
    assert logs.std(axis=0) == pytest.approx(MEASURED.relative_sd, rel=0.03)


def test_without_uncertainty_every_draw_is_the_same():
    sure = MEASURED.model_copy(update={"covariance": ((0.0,) * 7,) * 7})
    draws = sure.draw_coefficients(3, np.random.default_rng(0))
    assert draws == pytest.approx(np.tile(MEASURED.step_time.coefficients, (3, 1)))


def test_the_same_seed_gives_the_same_draws():
    one, two = (MEASURED.draw_coefficients(5, np.random.default_rng(7)) for _ in range(2))
    assert np.array_equal(one, two)


@pytest.mark.parametrize(
    ("kind", "words"), [("measured", "measured on"), ("fitted", "fitted to"), ("scaled", "not measured on")]
)
def test_the_summary_says_where_it_comes_from_and_its_spread(kind, words):
    summary = MEASURED.model_copy(update={"kind": kind, "time_sd": 0.05}).summary
    assert summary.startswith(words)
    assert MEASURED.source in summary
    assert "±10 % on a cell's time at 95 %" in summary


def test_a_negative_coefficient_is_refused():
    with pytest.raises(ValidationError, match="a0"):
        MEASURED.step_time.model_validate(MEASURED.step_time.model_dump() | {"a0": -1e-3})


def test_every_shipped_calibration_is_whole():
    for calibration in shipped_calibrations():
        covariance = np.array(calibration.covariance)
        assert covariance.shape == (7, 7)
        assert np.allclose(covariance, covariance.T)
        assert np.linalg.eigvalsh(covariance).min() >= 0
        assert calibration.kind == "measured"
