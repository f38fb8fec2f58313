import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from maitre.metric_series import Histogram
from maitre.workload.prometheus.bounds import bounded_statistics, percentile_bounds

BOUNDS = (1, 2, 5, 10, 20, 50, 100)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=80), st.integers(1, 100))
def test_a_percentile_lies_within_its_bounds(values, percent):
    counts = np.bincount(np.searchsorted(BOUNDS, values), minlength=8).astype(float)
    bounds = percentile_bounds(Histogram(np.array([*BOUNDS, np.inf]), counts, 0.0), percent)
    truth = np.percentile(values, percent, method="inverted_cdf")
    assert bounds.low < truth <= (np.inf if bounds.high is None else bounds.high)
    assert bounds.high in {*BOUNDS, None}


def test_counts_that_are_no_whole_numbers_do_not_lead_into_an_empty_bucket():
    counts = np.array([0.0, 0.1, 0.2, 0.0, 0.7 - 1e-17, 0.0])
    histogram = Histogram(np.array([1.0, 2, 3, 4, 5, np.inf]), counts, 4.1)
    assert bounded_statistics(histogram).max.model_dump() == {"low": 4, "high": 5}
    assert bounded_statistics(histogram).mean == histogram.mean


def test_without_a_sum_the_mean_is_unknown():
    assert bounded_statistics(Histogram(np.array([1.0, np.inf]), np.array([1.0, 0.0]), np.nan)).mean is None
