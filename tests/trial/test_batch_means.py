"""The interval of a long-run mean from batches of one run."""

import numpy as np
import pytest
from scipy import stats

from maitre.trial.batch_means import _T_975, MAX_BATCHES, MIN_BATCHES, batch_means


def test_the_table_is_that_of_student():
    degrees = np.arange(MIN_BATCHES - 1, MAX_BATCHES)
    assert pytest.approx(stats.t.ppf(0.975, degrees), abs=5e-4) == _T_975


def test_the_interval_is_that_of_a_sample_if_batches_do_not_depend_on_each_other():
    batches = np.array([1.0, 3.0, 1.0, 3.0, 2.0, 2.5])
    found = batch_means(batches)
    assert found.lag1_autocorrelation < 0
    expected = stats.t.interval(0.95, 5, loc=batches.mean(), scale=stats.sem(batches))
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-3)
    assert (found.mean, found.num_batches) == (batches.mean(), 6)


def test_batches_that_are_all_alike_leave_no_doubt():
    found = batch_means(np.full(5, 7.0))
    assert (found.low, found.mean, found.high, found.lag1_autocorrelation) == (7, 7, 7, 0)


def test_two_batches_are_too_few():
    assert batch_means(np.array([1.0, 2.0])) is None
    assert batch_means(np.array([1.0, 2.0, 1.5])) is not None


def coverage(make_batches):
    generator = np.random.default_rng(0)
    found = [batch_means(make_batches(generator)) for _ in range(2000)]
    return np.mean([interval.low <= 0 <= interval.high for interval in found])


@pytest.mark.parametrize("k", [3, 6, 12, 30])
def test_the_interval_of_independent_batches_holds_the_mean_nineteen_times_in_twenty(k):
    assert 0.94 < coverage(lambda generator: generator.normal(size=k)) < 0.98


def autoregressive(generator, k, lag1):
    values = [generator.normal()]
    for noise in generator.normal(size=k - 1) * np.sqrt(1 - lag1**2):
        values.append(lag1 * values[-1] + noise)
    return np.array(values)


def test_batches_that_follow_each_other_widen_the_interval():
    covered = coverage(lambda generator: autoregressive(generator, 30, 0.4))
    generator = np.random.default_rng(0)
    samples = [autoregressive(generator, 30, 0.4) for _ in range(2000)]
    as_if_independent = np.mean([abs(s.mean()) < _T_975[27] * stats.sem(s) for s in samples])
    assert as_if_independent < 0.83
    assert covered > 0.90
