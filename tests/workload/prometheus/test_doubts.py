import json
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from maitre.metric_series import Histogram, MetricSeries
from maitre.workload.prometheus import Served, describe_served
from maitre.workload.prometheus.doubts import finer_buckets
from maitre.workload.prometheus.families import Rates

TIMES = np.arange(240.0) * 15


def gauge(values):
    return MetricSeries("vllm:num_requests_running", {}, TIMES, np.broadcast_to(np.asarray(values, float), TIMES.shape))


def narrow(length, count=3600.0):
    return Histogram(np.array([length * 0.9, length, np.inf]), np.array([0.0, count, 0.0]), length * 0.95 * count)


CALM = Served(
    model="m",
    address="http://p",
    window="10:00 to 11:00",
    window_s=3600.0,
    prompt=narrow(1000),
    output=narrow(200),
    max_tokens=None,
    ttft_s=None,
    latency_s=narrow(10.0),
    finished={"stop": 3600.0},
    rates=Rates(np.ones(59), 60, 3540.0),
    running=gauge(9.5),
    waiting=gauge(0),
    prefix_hit_rate=0.0,
)
"""One request a second, 9.5 s each."""


def codes(served):
    return [finding.code for finding in describe_served(served).findings]


def test_a_calm_server_raises_no_doubt():
    described = describe_served(CALM)
    assert described.findings == ()
    assert described.little_concurrency == pytest.approx(described.concurrency_mean, rel=0.02)


def test_rate_times_latency_that_is_not_what_the_gauges_say():
    assert codes(replace(CALM, running=gauge(20))) == ["little-disagrees"]
    assert codes(replace(CALM, running=gauge(8.7))) == []


def test_a_server_that_lets_no_more_in():
    full = replace(CALM, running=gauge(64), waiting=gauge(30), latency_s=narrow(100.0))
    assert codes(full) == ["saturated"]
    assert "not what the clients want" in describe_served(full).findings[0].message


def test_a_queue_that_grows_has_more_arrivals_than_the_rate_says():
    growing = replace(CALM, running=gauge(np.arange(240) % 60), latency_s=narrow(430.0))
    assert codes(replace(growing, waiting=gauge(np.linspace(0, 800, 240)))) == ["queue-grew"]


def test_a_window_that_was_only_partly_scraped():
    part = replace(CALM, rates=Rates(np.full(20, 3.0), 60, 1200.0), running=gauge(28))
    assert codes(part) == ["window-not-covered"]
    assert describe_served(part).rate_rps == pytest.approx(3.0)


def test_requests_that_ended_early():
    assert codes(replace(CALM, finished={"stop": 2500.0, "length": 1100.0})) == ["many-cut"]
    assert codes(replace(CALM, finished={"stop": 3300.0, "abort": 300.0})) == ["many-aborted"]


def test_prefixes_are_not_drawn():
    assert codes(replace(CALM, prefix_hit_rate=0.4)) == ["prefixes-not-rebuilt"]


def test_wide_buckets_come_with_better_ones_that_vllm_takes():
    wide = Histogram(np.array([500.0, 1000, 2000, 5000, np.inf]), np.array([10.0, 50, 30, 9, 1]), 120_000.0)
    finding = describe_served(replace(CALM, prompt=wide)).findings[-1]
    assert (finding.code, "0.32" in finding.remedy) == ("wide-bounds", True)
    bounds = json.loads(re.search(r"'(.*)'", finding.remedy)[1])["request_tokens"]
    assert bounds == sorted(set(bounds))
    assert bounds[0] <= 200
    assert bounds[-1] >= 5000 * 2.5
    assert max(high / low for low, high in pairwise(bounds) if low >= 10) < 1.35


def test_finer_buckets_begin_where_lengths_do():
    assert finer_buckets(narrow(1000)) == [900, 1125]
    tiny = Histogram(np.array([1.0, 2, np.inf]), np.array([5.0, 5, 0]), 15.0)
    assert finer_buckets(tiny) == [1, 2]


def test_what_is_not_exposed_is_unknown():
    bare = replace(CALM, latency_s=None, rates=None, running=None, waiting=None, prefix_hit_rate=None, finished={})
    described = describe_served(bare)
    assert (described.rate_rps, described.concurrency_p95, described.concurrency_source) == (1.0, None, None)
    assert described.rate_per_minute_rps is described.burstiness is described.little_concurrency is None


def test_what_the_server_adds_to_its_answers_is_passed_on():
    described = describe_served(replace(CALM, remarks=("some of the servers did not answer",)))
    assert "did not answer" in described.findings[0].message


def test_moments_at_which_only_one_gauge_was_read_do_not_count():
    late = MetricSeries("vllm:num_requests_waiting", {}, TIMES[100:], np.full(140, 2.0))
    assert describe_served(replace(CALM, waiting=late)).concurrency_mean == 11.5
