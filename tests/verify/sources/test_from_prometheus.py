"""What is asked of a Prometheus API, and what is made of its answers; real servers: tests/prometheus_live."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import UsageError
from maitre.metric_series import MetricSeries
from maitre.prometheus.client import PrometheusClient
from maitre.verify.sources.from_prometheus import even_step_s, read_window, steps_s
from maitre.verify.sources.prometheus_names import HISTOGRAMS, any_of, parse_matcher, sort_names
from maitre.verify.sources.same_series import drop_copies, join_pieces
from maitre.verify.sources.server_starts import MARGIN_S, find_turns


def series(values, time_s=None, name="vllm:generation_tokens_total", **labels):
    time_s = range(0, 100 * len(values), 100) if time_s is None else time_s
    return MetricSeries(name, labels, np.array(time_s, float), np.array(values, float))


def turns(*counters, resets=(), end_s=500):
    return [
        (turn.start_s, turn.end_s, sorted(turn.instances), turn.is_restart)
        for turn in find_turns(counters, resets, 0, end_s, 100)
    ]


# names


def test_every_spelling_is_read_and_other_peoples_metrics_are_not():
    names = [
        "vllm:num_requests_running", "ray_vllm_num_preemptions_total", "vllm_kv_cache_usage_perc_ratio",
        "vllm:inter_token_latency_seconds_bucket", "vllm:inter_token_latency_seconds_sum",
        "vllm:inter_token_latency_seconds_created", "vllm:generation_tokens_created", "vllm:cache_config_info",
        "vllm:lora_requests_info", "vllm:request_decode_time_seconds_bucket", "up", "vllm_python_gc_objects",
        "job:vllm:num_requests_running:sum",
    ]  # fmt: skip
    found = sort_names(names, (), HISTOGRAMS)
    assert set(found.gauges) == {"vllm:num_requests_running", "vllm_kv_cache_usage_perc_ratio"}
    assert found.counters == ("ray_vllm_num_preemptions_total",)
    assert found.own_name("ray_vllm_num_preemptions_total") == "vllm:num_preemptions_total"
    assert set(found.histograms) == {f"vllm:inter_token_latency_seconds_{end}" for end in ("bucket", "sum")}
    assert found.infos == ("vllm:cache_config_info",)


def test_a_native_histogram_is_read_where_no_classic_one_is():
    native = "vllm_inter_token_latency_seconds"
    found = sort_names([native], (), HISTOGRAMS)
    assert found.histograms == (native,)
    assert found.own_name(f"{native}_bucket") == "vllm:inter_token_latency_seconds_bucket"
    assert sort_names([native, f"{native}_bucket"], (), HISTOGRAMS).histograms == (f"{native}_bucket",)


def test_a_name_that_was_not_asked_for_has_no_own_name():
    found = sort_names(["vllm:num_requests_running"], (), HISTOGRAMS)
    assert found.own_name("vllm:num_requests_running") == "vllm:num_requests_running"
    assert (found.own_name("vllm:request_generation_tokens_sum"), found.own_name("up")) == (None, None)


def test_a_prefix_that_stands_for_vllm():
    assert sort_names(["llm_num_requests_running"], (), HISTOGRAMS).gauges == ()
    assert sort_names(["llm_num_requests_running"], ("llm_",), HISTOGRAMS).gauges == ("llm_num_requests_running",)


# matchers


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("namespace=prod", 'namespace="prod"'),
        ('namespace="prod"', 'namespace="prod"'),
        (" pod =~ 'vllm-.*' ", 'pod=~"vllm-.*"'),
        ("env!=test", 'env!="test"'),
        ("env!~a|b", 'env!~"a|b"'),
        ("a=", 'a=""'),
        ("a==b", 'a="=b"'),
        ('a="}or{"', 'a="}or{"'),
        ('a=x"y\\z', 'a="x\\"y\\\\z"'),
        ('a="x\\"y"', 'a="x\\"y"'),
    ],
)
def test_a_matcher_is_written_as_promql_does(text, written):
    assert parse_matcher(text) == written


@pytest.mark.parametrize("text", ["", "namespace", "1a=b", "a-b=c", '{a="b"}', "=x"])
def test_what_is_no_matcher(text):
    with pytest.raises(UsageError, match="no label matcher"):
        parse_matcher(text)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_a_value_is_matched_as_it_is_written(value):
    label, _, quoted = any_of("a", [value]).partition("=~")
    assert (label, re.fullmatch(json.loads(quoted), value) is not None) == ("a", True)


# steps


def test_a_week_has_a_thousand_points_of_gauges_and_two_dozen_of_buckets():
    assert steps_s(7 * 86400) == (604.8, 25200)
    assert steps_s(3600) == (15, 150)
    assert steps_s(600) == (15, 60)
    assert steps_s(5) == (5, 5)


@given(st.integers(1, 10**10), st.integers(1, 1000))
def test_the_last_moment_is_among_the_steps(length_ms, max_steps):
    step_ms = round(even_step_s(length_ms / 1000, 15, max_steps) * 1000)
    num_steps = length_ms // step_ms
    assert num_steps >= 1
    assert length_ms - num_steps * step_ms < max(num_steps, 1)
    assert num_steps <= max_steps + 1


# starts, stops and restarts


def test_a_server_that_ran_all_the_time_needs_no_closer_look():
    assert turns(series([1, 2, 3, 4, 5, 6], instance="a")) == []


def test_a_restart_is_where_the_counter_falls_or_the_server_says_so():
    assert turns(series([5, 6, 1, 2, 3, 4], instance="a")) == [(100, 200, ["a"], True)]
    hidden = series([0, 1], [200, 300], name="", instance="a")
    assert turns(series([1, 2, 3, 40, 50, 60], instance="a"), resets=[hidden]) == [
        (300 - 100 - MARGIN_S, 300, ["a"], True)
    ]


def test_a_server_that_comes_or_goes_within_the_window():
    comes, goes = series([0, 1, 2], [300, 400, 500], instance="b"), series([5, 6], [0, 100], instance="a")
    assert turns(comes) == [(300 - 100 - MARGIN_S, 300, ["b"], False)]
    assert turns(goes) == [(0, 200, ["a"], False)]
    assert turns(comes, goes) == [(0, 300, ["a", "b"], False)]


def test_both_ends_of_a_gap():
    gap = series([1, 2, 30, 40], [0, 100, 1400, 1500], instance="a")
    assert turns(gap, end_s=1500) == [(0, 200, ["a"], False), (1400 - 100 - MARGIN_S, 1400, ["a"], False)]


def test_restarts_come_first():
    found = turns(series([1, 2, 3], [900, 1000, 1100]), series([9, 8], [1800, 1900]), end_s=1900)
    assert [turn[3] for turn in found] == [True, False, False]


# pieces and copies


def test_pieces_of_one_series_are_joined_in_the_order_of_time():
    whole = join_pieces([series([1, 3], [0, 200], a="b"), series([2, 9], [100, 200], a="b"), series([7], a="c")])
    assert [(one.time_s.tolist(), one.values.tolist()) for one in whole] == [([0, 100, 200], [1, 2, 3]), ([0], [7])]


def test_a_target_that_two_servers_or_two_jobs_saw_counts_once():
    twice = [series([1, 2], instance="a", replica="0"), series([1, 2, 3], instance="a", replica="1")]
    kept, dropped = drop_copies([*twice, series([5], instance="b", replica="0")])
    assert ([one.values.tolist() for one in kept], dropped) == ([[1, 2, 3], [5]], 1)
    jobs = [series([1], instance="10.0.0.1:8000", job=job) for job in ("pods", "services")]
    assert drop_copies(jobs)[1] == 1


def test_what_may_be_another_server_is_kept():
    assert drop_copies([series([1], replica="0"), series([1], replica="1")])[1] == 0
    assert drop_copies([series([1], instance="localhost:8000", job=job) for job in "ab"])[1] == 0
    assert drop_copies([series([1], instance="a", engine=engine) for engine in "01"])[1] == 0


def test_a_window_that_ends_before_it_starts():
    with pytest.raises(UsageError, match="ends before it starts"):
        read_window(PrometheusClient("http://localhost:9"), 10, 10.0001)


class Stored:
    """A Prometheus API that has one gauge."""

    address, remarks = "http://stored", ()

    def __init__(self, name):
        self.name = name

    def label_values(self, *_):
        return [self.name]

    def query_range(self, *_):
        return [series([3, 4, 5], name=self.name)]


@pytest.mark.parametrize(("name", "num_notes"), [("vllm:num_waiting_seqs", 1), ("vllm:num_requests_waiting", 0)])
def test_a_name_that_never_was_is_taken_for_what_it_means_and_that_is_said(name, num_notes):
    notes = []
    found = read_window(Stored(name), 0, 300, on_note=notes.append)
    assert [one.name for one in found] == ["vllm:num_requests_waiting"]
    assert len([note for note in notes if "no vLLM ever had" in note]) == num_notes
