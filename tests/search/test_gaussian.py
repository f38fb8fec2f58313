"""Joint normals against what the textbook says by another route: joints, precisions, integrals, draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from maitre.search.gaussian import Gaussian, Observation

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 5)


def make_gaussian(generator, size):
    root = generator.normal(size=(size, size + 1))
    return Gaussian(generator.normal(size=size), root @ root.T)


def make_observation(generator, size, rows=2):
    root = generator.normal(size=(rows, rows + 1))
    return Observation(
        generator.normal(size=(rows, size)), generator.normal(size=rows), root @ root.T + 0.1 * np.eye(rows)
    )


def both(one, other):
    """Two independent observations as one."""
    zeros = np.zeros((len(one.values), len(other.values)))
    return Observation(
        np.vstack([one.design, other.design]),
        np.concatenate([one.values, other.values]),
        np.block([[one.covariance, zeros], [zeros.T, other.covariance]]),
    )


def assert_same(one, other):
    assert one.mean == pytest.approx(other.mean, abs=1e-7)
    assert one.covariance == pytest.approx(other.covariance, abs=1e-7)


@given(seed=seeds, size=sizes)
def test_an_observation_weighs_in_with_its_precision(seed, size):
    generator = np.random.default_rng(seed)
    before, seen = make_gaussian(generator, size), make_observation(generator, size)
    precision = np.linalg.inv(before.covariance) + seen.design.T @ np.linalg.inv(seen.covariance) @ seen.design
    pull = np.linalg.solve(before.covariance, before.mean) + seen.design.T @ np.linalg.solve(
        seen.covariance, seen.values
    )
    after = before.given(seen)
    scale = np.abs(before.covariance).max()
    assert after.covariance / scale == pytest.approx(np.linalg.inv(precision) / scale, abs=1e-5)
    assert after.mean == pytest.approx(np.linalg.solve(precision, pull), abs=1e-4)


@given(seed=seeds, size=sizes, value=st.floats(-5, 5))
def test_what_is_seen_exactly_is_known_exactly(seed, size, value):
    generator = np.random.default_rng(seed)
    design = generator.normal(size=(1, size))
    after = make_gaussian(generator, size).given(Observation(design, np.array([value]), np.zeros((1, 1))))
    assert design @ after.mean == pytest.approx(value, abs=1e-6)
    assert (design @ after.covariance @ design.T).item() == pytest.approx(0, abs=1e-7)


@given(seed=seeds, size=sizes)
def test_the_order_of_observations_does_not_matter(seed, size):
    generator = np.random.default_rng(seed)
    before = make_gaussian(generator, size)
    one, other = make_observation(generator, size), make_observation(generator, size, rows=3)
    assert_same(before.given(one).given(other), before.given(other).given(one))
    assert_same(before.given(one).given(other), before.given(both(one, other)))


@given(seed=seeds, size=sizes)
def test_densities_multiply_along_a_chain(seed, size):
    generator = np.random.default_rng(seed)
    before = make_gaussian(generator, size)
    one, other = make_observation(generator, size), make_observation(generator, size, rows=3)
    chained = before.log_density(one) + before.given(one).log_density(other)
    assert chained == pytest.approx(before.log_density(both(one, other)), rel=1e-6, abs=1e-6)


@given(seed=seeds, size=sizes)
def test_a_density_is_that_of_the_joint_normal(seed, size):
    generator = np.random.default_rng(seed)
    before, seen = make_gaussian(generator, size), make_observation(generator, size)
    spread = seen.design @ before.covariance @ seen.design.T + seen.covariance
    expected = multivariate_normal(seen.design @ before.mean, spread).logpdf(seen.values)
    assert before.log_density(seen) == pytest.approx(expected, rel=1e-8, abs=1e-8)


@given(seed=seeds)
def test_a_density_integrates_to_one_and_has_the_mean_that_is_expected(seed):
    generator = np.random.default_rng(seed)
    before, seen = make_gaussian(generator, 3), make_observation(generator, 3, rows=1)
    centre = (seen.design @ before.mean).item()
    sd = np.sqrt((seen.design @ before.covariance @ seen.design.T + seen.covariance).item())
    values = np.linspace(centre - 9 * sd, centre + 9 * sd, 401)
    density = np.exp([before.log_density(Observation(seen.design, np.array([v]), seen.covariance)) for v in values])
    step = values[1] - values[0]
    assert density.sum() * step == pytest.approx(1)
    assert (values * density).sum() * step == pytest.approx(centre, abs=1e-6 * sd)
    assert ((values - centre) ** 2 * density).sum() * step == pytest.approx(sd**2)


@given(seed=seeds)
def test_hundreds_of_observations_leave_a_proper_covariance_that_only_shrinks(seed):
    generator = np.random.default_rng(seed)
    state = make_gaussian(generator, 6)
    for _ in range(200):
        seen = make_observation(generator, 6, rows=3)
        after = state.given(Observation(seen.design, seen.values, 1e-6 * seen.covariance))
        assert np.all(np.diag(after.covariance) <= np.diag(state.covariance) + 1e-12)
        state = after
    assert np.array_equal(state.covariance, state.covariance.T)
    assert np.linalg.eigvalsh(state.covariance).min() > -1e-12


@given(seed=seeds, size=sizes)
def test_an_observation_of_nothing_changes_nothing(seed, size):
    state = make_gaussian(np.random.default_rng(seed), size)
    assert_same(state.given(Observation(np.zeros((1, size)), np.array([3.0]), np.eye(1))), state)


def test_draws_have_the_mean_and_covariance_and_a_seed_decides_them():
    state = make_gaussian(np.random.default_rng(1), 3)
    draws = state.draws(200_000, np.random.default_rng(2))
    assert draws.shape == (200_000, 3)
    assert draws.mean(axis=0) == pytest.approx(state.mean, abs=0.02)
    assert np.cov(draws.T) == pytest.approx(state.covariance, rel=0.03, abs=0.03)
    assert np.array_equal(state.draws(5, np.random.default_rng(3)), state.draws(5, np.random.default_rng(3)))


def test_what_does_not_vary_is_drawn_without_spread():
    together = Gaussian(np.array([1.0, 2.0]), np.ones((2, 2)))
    draws = together.draws(100, np.random.default_rng(0))
    assert draws[:, 1] - draws[:, 0] == pytest.approx(np.ones(100))
    fixed = Gaussian(np.array([1.0, 2.0]), np.zeros((2, 2)))
    assert np.array_equal(fixed.draws(3, np.random.default_rng(0)), np.tile([1.0, 2.0], (3, 1)))


def test_images_and_sums_have_the_moments_of_the_draws():
    generator = np.random.default_rng(0)
    one, other = make_gaussian(generator, 3), make_gaussian(generator, 2)
    matrix, offset = generator.normal(size=(2, 3)), np.array([5.0, -1.0])
    total = one.image(matrix, offset).plus(other)
    draws = offset + one.draws(200_000, generator) @ matrix.T + other.draws(200_000, generator)
    assert total.mean == pytest.approx(draws.mean(axis=0), abs=0.05)
    assert total.covariance == pytest.approx(np.cov(draws.T), rel=0.03, abs=0.05)
