"""The gauges of each engine on one clock."""

import numpy as np

from maitre.metric_series import MetricSeries
from maitre.verify.engine_gauges import engine_gauges


def gauge(name, values, times=None, **labels):
    times = 15.0 * np.arange(len(values)) if times is None else np.array(times, dtype=float)
    return MetricSeries(f"vllm:{name}", labels, times, np.array(values, dtype=float))


def test_engines_are_kept_apart():
    found = engine_gauges(
        [gauge("num_requests_running", [1, 2], engine="0"), gauge("num_requests_running", [5, 6], engine="1")]
    )
    assert [(one.name, one.running.tolist()) for one in found] == [("engine 0", [1, 2]), ("engine 1", [5, 6])]


def test_a_gauge_that_misses_a_sample_is_unknown_there():
    (one,) = engine_gauges(
        [gauge("num_requests_running", [1, 2, 3]), gauge("num_requests_waiting", [7, 9], times=[0, 30])]
    )
    assert one.waiting.tolist()[0] == 7
    assert np.isnan(one.waiting[1])
    assert one.in_flight.tolist() == [8, 2, 12]


def test_the_old_name_counts_where_the_new_one_has_no_values():
    (one,) = engine_gauges([gauge("kv_cache_usage_perc", [np.nan]), gauge("gpu_cache_usage_perc", [0.4])])
    assert one.kv_usage.tolist() == [0.4]


def test_usage_that_is_shown_once_a_process_is_the_highest():
    (one,) = engine_gauges([gauge("kv_cache_usage_perc", [value], engine="0", pid=str(value)) for value in (0.0, 0.65)])
    assert one.kv_usage.tolist() == [0.65]


def test_swapped_requests_wait():
    (one,) = engine_gauges([gauge("num_requests_waiting", [1, 1]), gauge("num_requests_swapped", [2, 0])])
    assert one.waiting.tolist() == [3, 1]


def test_negative_numbers_of_requests_are_none():
    (one,) = engine_gauges([gauge("num_requests_running", [-1, 4])])
    assert np.isnan(one.running[0])


def test_undated_scrapes_stay_in_their_order():
    (one,) = engine_gauges(
        [gauge("num_requests_running", [1, 2], times=[np.nan] * 2), gauge("kv_cache_usage_perc", [0.1], times=[np.nan])]
    )
    assert one.running.tolist() == [1, 2]
    assert one.kv_usage.tolist()[0] == 0.1
