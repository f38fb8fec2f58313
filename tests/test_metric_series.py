"""Counters over restarts, and what a histogram counted between two moments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.metric_series import MetricSeries, histogram, increase, total_increase, within

FAMILY = "vllm:time_to_first_token_seconds"


def series(values, name="vllm:generation_tokens_total", start_s=0.0, **labels):
    return MetricSeries(name, labels, start_s + 15.0 * np.arange(len(values)), np.array(values, dtype=float))


def buckets(cumulative, **labels):
    """One series a bucket, from zero to the given counts within 15 s."""
    return [series([0, count], f"{FAMILY}_bucket", le=le, **labels) for le, count in cumulative.items()]


def test_a_counter_that_falls_has_begun_again():
    assert increase(series([10, 30, 5, 6])) == 20 + 5 + 1


def test_one_sample_tells_no_increase():
    assert increase(series([10])) is None
    assert increase(series([10, 20, 30]), start_s=29.0) is None
    assert total_increase([series([1]), series([1, 4])]) == 3
    assert total_increase([series([1])]) is None


def test_only_the_window_counts():
    assert increase(series([0, 1, 3, 7]), 15.0, 30.0) == 2


def test_samples_without_a_time_always_count():
    undated = MetricSeries("n", {}, np.array([np.nan, np.nan]), np.array([1.0, 4.0]))
    assert increase(undated, 100.0, 200.0) == 3


def test_what_is_no_number_is_passed_over():
    assert within(series([1, np.nan, np.inf, 2])).tolist() == [1, 2]


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=30))
def test_an_increase_is_never_negative_and_adds_up(values):
    one = series(values)
    middle = 15.0 * (len(values) // 2)
    parts = [increase(one, 0, middle), increase(one, middle, np.inf)]
    assert increase(one) >= 0
    assert increase(one) == pytest.approx(sum(part for part in parts if part is not None), rel=1e-9)


def test_engines_are_added_up_and_the_mean_is_exact():
    sums = [series([0, 9.0], f"{FAMILY}_sum", engine=engine) for engine in "01"]
    found = histogram(
        [
            *buckets({"0.1": 2, "1": 5, "+Inf": 6}, engine="0"),
            *buckets({"0.1": 1, "1": 1, "+Inf": 3}, engine="1"),
            *sums,
        ],
        FAMILY,
    )
    assert found.upper.tolist() == [0.1, 1.0, np.inf]
    assert found.counts.tolist() == [3, 3, 3]
    assert found.count == 9
    assert found.mean == 2


def test_engines_with_other_buckets_share_the_bounds_that_both_have():
    found = histogram(
        [*buckets({"0.1": 2, "0.5": 3, "+Inf": 6}, engine="0"), *buckets({"0.2": 1, "0.5": 2, "+Inf": 3}, engine="1")],
        FAMILY,
    )
    assert found.upper.tolist() == [0.5, np.inf]
    assert found.counts.tolist() == [5, 4]
    assert found.mean is None  # no sum is exposed


def test_no_bucket_is_no_histogram():
    assert histogram([series([0, 1])], FAMILY) is None


@pytest.mark.parametrize(
    ("labels", "engine"),
    [
        ({}, ("", "")),
        ({"engine": "1"}, ("", "1")),
        ({"instance": "a:8000", "engine": "0", "pod": "p"}, ("a:8000", "0")),
        ({"pod": "p", "engine_id": "2"}, ("p", "2")),
    ],
)
def test_an_engine_is_known_by_its_server_and_its_label(labels, engine):
    assert series([1], **labels).engine == engine
