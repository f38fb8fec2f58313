"""Counters that run backwards: a restart is in order, several processes behind one address are not."""

import numpy as np
import pytest

from maitre.metric_series import MetricSeries
from maitre.verify.sources.counter_order import contradictory_counters

NAME = "vllm:generation_tokens_total"


def series(values, starts=None, *, undated=False, name=NAME, **labels):
    time_s = np.full(len(values), np.nan) if undated else 15.0 * np.arange(len(values))
    found = [MetricSeries(name, labels, time_s, np.asarray(values, dtype=float))]
    if starts is not None:
        place = {key: value for key, value in labels.items() if key == "instance"}
        found.append(MetricSeries("process_start_time_seconds", place, time_s, np.asarray(starts, dtype=float)))
    return found


IN_ORDER = {
    "it grows": ([1, 2, 3, 3, 9], None),
    "a restart": ([100, 200, 5, 90], [1, 1, 9, 9]),
    "a restart, start times not exposed": ([100, 200, 5, 90], None),
    "a restart that caught up": ([100, 200, 5, 300], None),
    "restarts again and again": ([100, 5, 80, 3, 90, 2], [1, 2, 2, 3, 3, 4]),
    "restarts again and again, start times not exposed": ([100, 5, 80, 3, 70, 2, 60], None),
    "one look": ([5], [1]),
}


@pytest.mark.parametrize("undated", [False, True])
@pytest.mark.parametrize(("values", "starts"), IN_ORDER.values(), ids=IN_ORDER)
def test_what_a_single_process_can_show_is_in_order(values, starts, undated):
    assert contradictory_counters(series(values, starts, undated=undated)) == ()


CONTRADICTORY = {
    "two processes in turn, started together": ([100, 5, 110, 6, 120, 7], [1] * 6),
    "two processes in turn, start times not exposed": ([100, 5, 110, 6, 120, 7], None),
    "four processes at random": ([100, 5, 40, 41, 102, 60, 6, 104], None),
    "one fall without a start": ([100, 200, 150], [1, 1, 1]),
}


@pytest.mark.parametrize("undated", [False, True])
@pytest.mark.parametrize(("values", "starts"), CONTRADICTORY.values(), ids=CONTRADICTORY)
def test_what_no_single_process_can_show_is_found(values, starts, undated):
    assert contradictory_counters(series(values, starts, undated=undated)) == (NAME,)


def test_start_times_that_run_back_are_enough():
    found = contradictory_counters(series([100, 105, 110], [5, 2, 5]))
    assert found == ("process_start_time_seconds",)


def test_histograms_count_and_gauges_and_birthdays_do_not():
    falling = [100, 5, 110, 6, 120, 7]
    histogram = "vllm:time_to_first_token_seconds_bucket"
    assert contradictory_counters(series(falling, name=histogram, le="0.1")) == (histogram,)
    for name in ("vllm:num_requests_running", "vllm:generation_tokens_created", "vllm:kv_cache_usage_perc"):
        assert contradictory_counters(series(falling, name=name)) == ()


def test_each_server_has_its_own_start():
    steady = series([1, 2, 3], [7, 7, 7], instance="a")
    restarted = series([100, 5, 9], [1, 8, 8], instance="b")
    assert contradictory_counters(steady + restarted) == ()


def test_a_counter_that_appeared_later_is_compared_with_the_start_at_its_own_times():
    rows = series([100, 200, 5, 90], [1, 1, 9, 9])
    late = MetricSeries(NAME, {"engine": "1"}, rows[0].time_s[1:], np.array([50.0, 40.0, 60.0]))
    assert contradictory_counters([*rows, late]) == ()
    assert contradictory_counters([*rows, MetricSeries(NAME, {}, late.time_s, np.array([50.0, 60.0, 40.0]))]) == (NAME,)
