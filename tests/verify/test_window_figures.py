"""A window of metrics becomes figures: over engines, restarts, old names and gaps."""

import numpy as np
import pytest

from maitre.metric_series import MetricSeries
from maitre.verify.window_figures import figures_over_time, window_figures

TIMES = np.arange(0.0, 301.0, 15.0)


def counter(name, per_s, times=TIMES, **labels):
    return MetricSeries(name, labels, times, 1000.0 + per_s * (times - times[0]))


def gauge(name, values, times=TIMES, **labels):
    return MetricSeries(name, labels, times, np.broadcast_to(np.asarray(values, dtype=float), times.shape))


def buckets(family, per_s, times=TIMES, **labels):
    """Cumulative buckets from upper bounds and observations a second; each observation is half of its bound."""
    cumulative, total = 0.0, 0.0
    series = []
    for le, rate in per_s.items():
        cumulative += rate
        total += rate * (float(le) / 2 if le != "+Inf" else 0.0)
        series.append(counter(f"{family}_bucket", cumulative, times, le=le, **labels))
    parts = {"_sum": total, "_count": cumulative}
    return [*series, *(counter(family + part, rate, times, **labels) for part, rate in parts.items())]


def test_counters_are_divided_by_the_time_between_their_first_and_last_sample():
    figures = window_figures([counter("vllm:generation_tokens_total", 40.0)], 7.0, 295.0)
    assert figures.duration_s == 270.0  # samples at 15 and 285
    assert figures.output_tokens_per_s == pytest.approx(40.0)


def test_engines_are_added_up_and_their_cache_usage_is_averaged():
    engines = [
        [counter("vllm:request_success_total", rate, engine=name), gauge("vllm:num_requests_running", run, engine=name)]
        for name, rate, run in (("0", 2.0, 10), ("1", 1.0, 4))
    ]
    usage = [gauge("vllm:kv_cache_usage_perc", use, engine=name) for name, use in (("0", 0.9), ("1", 0.3))]
    figures = window_figures([*engines[0], *engines[1], *usage])
    assert figures.rate_rps == pytest.approx(3.0)
    assert figures.running == pytest.approx(14.0)
    assert figures.kv_usage == pytest.approx(0.6)


def test_a_pod_that_was_replaced_does_not_count_twice():
    early, late = TIMES[TIMES <= 150], TIMES[TIMES >= 150]
    pods = [
        one
        for times, pod in ((early, "a"), (late, "b"))
        for one in (
            gauge("vllm:num_requests_running", 8.0, times, pod=pod),
            counter("vllm:generation_tokens_total", 40.0, times, pod=pod),
        )
    ]
    figures = window_figures(pods)
    assert figures.running == pytest.approx(8.0)
    assert figures.output_tokens_per_s == pytest.approx(40.0)


def test_a_backlog_that_grows_counts_as_arrivals():
    waiting = gauge("vllm:num_requests_waiting", TIMES / 10)
    figures = window_figures([counter("vllm:request_success_total", 1.0), waiting])
    assert figures.num_requests == pytest.approx(300.0)
    assert figures.arrivals == pytest.approx(330.0)
    assert figures.waiting_share == pytest.approx(20 / 21)


def test_a_silent_new_family_gives_way_to_the_old_one_that_counts():
    new = buckets("vllm:inter_token_latency_seconds", {"0.025": 0.0, "+Inf": 0.0})
    old = buckets("vllm:time_per_output_token_seconds", {"0.025": 3.0, "0.05": 1.0, "+Inf": 0.0})
    figures = window_figures([*new, *old])
    assert figures.itl.counts == pytest.approx([900.0, 300.0, 0.0])


def test_two_families_side_by_side_are_not_added_up():
    both = [
        one
        for family in ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
        for one in buckets(family, {"0.025": 3.0, "+Inf": 1.0})
    ]
    assert window_figures(both).itl.count == pytest.approx(1200.0)


def test_means_of_lengths_come_from_sums_and_counts():
    figures = window_figures(buckets("vllm:request_prompt_tokens", {"100": 1.0, "200": 1.0, "+Inf": 0.0}))
    assert figures.prompt_tokens == pytest.approx(75.0)
    assert figures.num_requests == pytest.approx(600.0)


def test_a_log_without_counters_still_tells_speed_and_hit_rate():
    lines = [
        gauge("vllm:avg_generation_throughput_toks_per_s", 500.0),
        gauge("vllm:gpu_prefix_cache_hit_rate", 0.25),
        gauge("vllm:num_requests_waiting", 0.0),
    ]
    figures = window_figures(lines)
    assert (figures.output_tokens_per_s, figures.prefix_hit_rate, figures.waiting_share) == (500.0, 0.25, 0.0)
    assert figures.rate_rps is None


def test_what_is_not_exposed_is_unknown():
    figures = window_figures([])
    known = {name: getattr(figures, name) for name in figures.__slots__ if name not in {"start_s", "end_s"}}
    assert set(known.values()) == {None}


def test_dumps_without_times_give_counts_but_no_rates():
    nowhen = np.full(2, np.nan)
    series = [
        MetricSeries("vllm:request_success_total", {}, nowhen, np.array([5.0, 25.0])),
        MetricSeries("vllm:num_requests_running", {}, nowhen, np.array([5.0, 7.0])),
    ]
    figures = window_figures(series)
    assert (figures.num_requests, figures.running, figures.rate_rps) == (20.0, 6.0, None)


def test_sub_windows_lose_no_tokens_between_them():
    series = [counter("vllm:request_success_total", 2.0)]
    parts = figures_over_time(series, 0.0, 300.0, length_s=60.0)
    assert len(parts) == 5
    assert sum(part.num_requests for part in parts) == window_figures(series).num_requests


def test_sub_windows_of_scrapes_that_are_further_apart_than_their_length():
    sparse = np.array([0.0, 400.0, 800.0])
    parts = figures_over_time([counter("vllm:request_success_total", 2.0, sparse)], 0.0, 800.0, length_s=60.0)
    assert [part.duration_s for part in parts] == [400.0, 400.0]


def test_one_sample_has_no_sub_windows():
    assert figures_over_time([counter("vllm:request_success_total", 2.0, TIMES[:1])], 0.0, 300.0, 60.0) == ()


def test_a_bucket_without_a_bound_is_passed_over():
    whole = buckets("vllm:request_prompt_tokens", {"100": 2.0, "+Inf": 1.0})
    broken = [
        counter("vllm:request_prompt_tokens_bucket", 1.0, **labels) for labels in ({}, {"le": "x"}, {"le": "nan"})
    ]
    found, expected = (window_figures(series).prompt_lengths for series in ([*whole, *broken], whole))
    np.testing.assert_array_equal(found.counts, expected.counts)
    assert window_figures(broken).prompt_lengths is None
