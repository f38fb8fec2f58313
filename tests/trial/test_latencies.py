"""Latencies of a run and their percentiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.trial.latencies import (
    percentiles,
    times_per_output_token,
    token_gaps,
    weighted_percentiles,
    weighted_quantiles,
)

COUNTED = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50)), min_size=1, max_size=30)


@given(COUNTED)
def test_weighted_percentiles_are_those_of_the_expanded_values(counted):
    values, counts = map(np.array, zip(*counted, strict=True))
    expanded = np.repeat(values, counts)
    found = weighted_percentiles(values, counts)
    if not len(expanded):
        assert found is None
        return
    expected = np.percentile(expanded, [50, 95, 99, 100], method="inverted_cdf")
    assert [found.p50, found.p95, found.p99, found.max] == expected.tolist()


@given(st.integers(1, 100))
def test_of_a_hundred_values_the_percentile_is_the_one_of_that_rank(percent):
    values = np.arange(1.0, 101.0)  # 0.55 * 100 is above 55 in floating point
    assert weighted_quantiles(values, np.ones(100), (percent,)) == [percent]


def test_nothing_has_no_percentiles():
    assert percentiles(np.array([])) is None


def test_time_per_output_token_leaves_out_the_first_token_and_requests_that_have_no_other(make_run):
    run = make_run(
        num_requests=3,
        output_tokens=np.array([11, 1, 3]),
        first_token_s=np.array([1.0, 2.0, 3.0]),
        last_token_s=np.array([6.0, 2.0, 7.0]),
    )
    assert times_per_output_token(run).tolist() == [0.5, 2.0]


def test_inter_token_latency_counts_a_step_once_for_each_of_its_sequences(make_run):
    run = make_run(num_steps=3, step_end_s=np.array([1.0, 3.0, 6.0]), num_steady_decodes=np.array([2, 0, 5]))
    values, weights = token_gaps(run)
    assert dict(zip(values, weights, strict=True)) == {1.0: 2, 2.0: 0, 3.0: 5}


def test_a_stream_that_stood_still_counts_with_its_whole_gap(make_run):
    run = make_run(num_steps=4, other_gaps=np.array([[0, 3]]))
    values, weights = token_gaps(run)
    assert values.max() == 3
    assert weights[values == 3].tolist() == [1]


@pytest.mark.parametrize(("is_burst", "first_kept"), [(True, 2), (False, 0)])
def test_only_a_burst_has_a_ramp_to_leave_out(make_run, is_burst, first_kept):
    token_budget, seqs = 1, 0
    bound_by = np.array([token_budget, token_budget, seqs, token_budget])
    run = make_run(num_steps=4, bound_by=bound_by, other_gaps=np.array([[1, 3]]), is_burst=is_burst)
    _, weights = token_gaps(run)
    assert np.flatnonzero(weights[:4])[0] == first_kept
    assert len(weights) == (4 if is_burst else 5)
