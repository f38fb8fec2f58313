"""Latency targets held against a run."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from maitre.slo import parse_latency_targets
from maitre.trial import attains
from maitre.trial.attainment import wilson_interval


def targets(*texts):
    return parse_latency_targets(texts)


@pytest.fixture
def four_requests(make_run):
    """Time to first token 1 to 4 s, time per output token 4 to 1 s, eleven tokens each, in 100 s."""
    first_token_s, decoding_s = np.array([[1.0, 2.0, 3.0, 4.0], [40.0, 30.0, 20.0, 10.0]])
    return make_run(num_requests=4, first_token_s=first_token_s, last_token_s=first_token_s + decoding_s)


def test_a_request_attains_only_if_it_is_within_all_limits_at_once(four_requests):
    by_ttft, by_tpot = targets("ttft_p50=2s"), targets("tpot_p50=2s")
    assert attains(four_requests, by_ttft).num_attaining == 2
    assert attains(four_requests, by_tpot).num_attaining == 2
    both = attains(four_requests, by_ttft + by_tpot)
    assert both.num_attaining == 0  # those that begin early are slow
    assert (both.share, both.goodput_rps) == (0, 0)
    assert both.met  # and yet half of them keep each limit


def test_goodput_is_requests_within_the_limits_over_the_whole_time(four_requests):
    found = attains(four_requests, targets("e2e_p99=33s"))
    assert found.num_attaining == 3
    assert found.share == 0.75
    assert found.goodput_rps == pytest.approx(3 / 100)
    assert not found.met


def test_a_target_says_its_percentile_and_how_many_are_within(four_requests):
    (ttft,) = attains(four_requests, targets("ttft_p75=2500ms")).by_target
    assert (ttft.target, ttft.value_s, ttft.share, ttft.met) == ("ttft_p75=2.5s", 3.0, 0.5, False)
    (longest,) = attains(four_requests, targets("ttft_max=4s")).by_target
    assert (longest.value_s, longest.share, longest.met) == (4.0, 1.0, True)


def test_waiting_begins_at_the_arrival(four_requests):
    served_at_once = replace(four_requests, arrival_s=four_requests.first_token_s - 0.1)
    assert attains(served_at_once, targets("ttft_max=101ms")).met


def test_inter_token_latency_is_held_over_tokens_and_for_a_request_by_its_time_per_output_token(make_run):
    step_end_s = np.cumsum(np.where(np.arange(100) % 10 == 9, 5.0, 1.0))  # a tenth of the steps takes five seconds
    run = make_run(step_end_s=step_end_s, last_token_s=np.full(20, 1 + 14.0))
    found = attains(run, targets("itl_p90=1s", "itl_p95=2s"))
    assert [target.met for target in found.by_target] == [True, False]
    assert found.by_target[0].share == pytest.approx(0.9)
    assert found.num_attaining == 0  # 1.4 s a token
    assert attains(run, targets("itl_p95=2s")).num_attaining == 20


def test_requests_of_one_token_keep_every_limit_on_what_follows(make_run):
    run = make_run(output_tokens=np.ones(20, dtype=int), last_token_s=np.ones(20), num_steady_decodes=np.zeros(100))
    found = attains(run, targets("itl_p99=1ms", "tpot_p99=1ms"))
    assert [(target.value_s, target.met) for target in found.by_target] == [(None, True), (None, True)]
    assert found.num_attaining == 20


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(50, 99), st.integers(1, 9))
def test_a_target_is_met_exactly_if_its_share_is_within(make_run, seconds, percent, limit_s):
    run = make_run(num_requests=len(seconds), first_token_s=np.array(seconds, dtype=float))
    (target,) = attains(run, targets(f"ttft_p{percent}={limit_s}s")).by_target
    within = sum(second <= limit_s for second in seconds)
    assert target.share == pytest.approx(within / len(seconds))
    assert target.met == (100 * within >= percent * len(seconds))


@given(st.integers(1, 5000), st.data())
def test_the_interval_of_a_share_is_wilsons(num_tries, data):
    num_hits = data.draw(st.integers(0, num_tries))
    expected = binomtest(num_hits, num_tries).proportion_ci(0.95, method="wilson")
    assert wilson_interval(num_hits, num_tries) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_the_interval_of_a_run_is_that_of_its_share(four_requests):
    found = attains(four_requests, targets("ttft_p50=3s"))
    assert (found.share_low, found.share_high) == wilson_interval(3, 4)


def test_no_targets_are_always_met(four_requests):
    assert attains(four_requests, ()).met
    assert attains(four_requests, ()).share == 1
