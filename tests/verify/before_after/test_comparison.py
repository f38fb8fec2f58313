"""Before and after: like is compared with like, or nothing is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitre.metric_series import Histogram
from maitre.verify.before_after.comparison import compare_windows
from maitre.verify.before_after.measures import share_above, tail_bound
from maitre.verify.window_figures import WindowFigures

BOUNDS = np.array([0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10, np.inf])
LENGTHS = np.array([100, 200, 500, 1000, 2000, 5000, np.inf])
OPPOSITE = {"improved": "worse", "worse": "improved"}


def latency(median_s, count, spread=0.4):
    """As many observations as `count`, lognormal, without noise."""
    quantiles = np.exp(np.log(median_s) + spread * GRID)
    counts = np.bincount(np.searchsorted(BOUNDS, quantiles), minlength=len(BOUNDS)) * count / len(GRID)
    return Histogram(BOUNDS, counts, float(quantiles.mean() * count))


GRID = np.sort(np.random.default_rng(0).standard_normal(400))


def window(start_s, rate=2.0, prompt=600.0, output=250.0, slowness=1.0, waiting=0.0, speed=None):
    """Five minutes of a server whose latency grows with its load."""
    num, load = rate * 300, 1 + rate / 10
    shares = np.exp(-((np.log(LENGTHS[:-1] / prompt)) ** 2))
    lengths = Histogram(LENGTHS, np.append(shares / shares.sum(), 0.0) * num, prompt * num)
    return WindowFigures(
        start_s=start_s, end_s=start_s + 300, duration_s=300.0, num_requests=num, arrivals=num, prompt_tokens=prompt,
        output_tokens=output, prompt_lengths=lengths, output_lengths=None, prefix_hit_rate=None,
        running=rate * output * 0.03 * load * slowness, waiting=waiting, waiting_share=float(waiting > 0), kv_usage=0.5,
        preemptions=0.0, output_tokens_per_s=rate * output if speed is None else speed,
        prompt_tokens_per_s=rate * prompt, num_steps=9000.0, itl=latency(0.03 * load * slowness, 9000),
        ttft=latency(0.2 * load * slowness, num), queue_time=latency(0.01 + waiting, num),
    )  # fmt: skip


def side(start_s=0.0, num=24, seed=0, traffic=1.0, slowness=1.0, **fixed):
    """Two hours in which load, lengths and the server's speed wander a little."""
    rng = np.random.default_rng(seed)
    return [
        window(
            start_s + 300 * n,
            rate=2 * traffic * (1 + 0.3 * np.sin(n / 4)) * np.exp(0.03 * rng.standard_normal()),
            prompt=600 * np.exp(0.03 * rng.standard_normal()),
            slowness=slowness * np.exp(0.01 * rng.standard_normal()),
            **fixed,
        )
        for n in range(num)
    ]


def verdicts(comparison):
    return {change.measure: change.verdict for change in comparison.changes}


def test_a_time_against_itself_is_unchanged():
    same = compare_windows(side(), side())
    assert same.verdict == "unchanged"
    assert set(verdicts(same).values()) == {"unchanged"}
    assert all(change.change == pytest.approx(0.0, abs=1e-12) for change in same.changes)


def test_two_days_of_the_same_server_are_unchanged_and_the_doubt_is_told():
    compared = compare_windows(side(), side(1e5, seed=1))
    assert compared.verdict == "unchanged"
    assert "may have changed by" in compared.reason


def test_a_server_whose_speed_wanders_for_hours_is_seldom_called_changed():
    """Its mean of two hours is off by half of what it wanders; no call may rest on that."""
    called = [compare_windows(wandering(seed), wandering(seed + 1000)).verdict for seed in range(25)]
    assert called.count("unchanged") >= 23


def wandering(seed, spread=0.03, memory=0.7):
    rng = np.random.default_rng(seed)
    shifts = spread * rng.standard_normal(24)
    for n in range(1, 24):
        shifts[n] = memory * shifts[n - 1] + np.sqrt(1 - memory**2) * shifts[n]
    rates = 2 * np.exp(0.05 * rng.standard_normal(24))
    return [window(300.0 * n, rate=rates[n], slowness=np.exp(shifts[n])) for n in range(24)]


def test_latency_that_is_a_third_higher_is_worse_by_that_much():
    compared = compare_windows(side(), side(1e5, seed=1, slowness=1.3))
    assert compared.verdict == "worse"
    mean = next(change for change in compared.changes if change.measure == "itl-mean")
    assert mean.low < 0.3 < mean.high
    assert mean.after / mean.before == pytest.approx(1.3, abs=0.05)
    assert verdicts(compared)["ttft-mean"] == "worse"
    assert "mean inter-token latency" in compared.reason


def test_equal_throughput_at_equal_load_says_nothing_and_more_load_is_no_improvement():
    compared = compare_windows(side(), side(1e5, seed=1, traffic=1.05))
    assert compared.verdict == "unchanged"
    assert not next(change for change in compared.changes if change.measure == "output-tokens-per-s").decides


def test_more_traffic_does_not_pass_for_a_slower_server():
    """Latency follows load; half of the sub-windows after the change have partners at their load."""
    assert compare_windows(side(), side(1e5, seed=1, traffic=1.2)).verdict == "unchanged"


@pytest.mark.parametrize(("gain", "verdict"), [(1.0, "unchanged"), (1.15, "improved"), (0.9, "worse")])
def test_a_saturated_server_is_judged_by_its_throughput(gain, verdict):
    before = saturated(500.0)
    after = saturated(500.0 * gain, start_s=1e5, seed=1)
    compared = compare_windows(before, after)
    assert compared.verdict == verdict
    assert [change.measure for change in compared.changes if change.decides] == ["output-tokens-per-s"]
    assert (compared.num_pairs, compared.num_saturated_pairs) == (0, 24)


def saturated(speed, start_s=0.0, seed=0):
    rng = np.random.default_rng(seed)
    windows = side(start_s, seed=seed, waiting=40.0)
    return [replace(one, output_tokens_per_s=speed * np.exp(0.01 * rng.standard_normal())) for one in windows]


def test_a_queue_that_went_away_at_the_same_arrivals_is_an_improvement():
    before = [replace(one, ttft=latency(3.0, one.num_requests)) for one in side(waiting=40.0)]
    compared = compare_windows(before, side(1e5, seed=1))
    assert compared.verdict == "improved"
    assert verdicts(compared)["waiting"] == "improved"
    assert verdicts(compared)["queue-time-mean"] == "improved"


def test_a_fixed_number_of_clients_is_compared_at_equal_concurrency():
    compared = compare_windows(clients(2.0, 1.0), clients(2.6, 1 / 1.3, 1e5, seed=1))
    assert compared.verdict == "improved"
    speed = next(change for change in compared.changes if change.measure == "output-tokens-per-s")
    assert (speed.decides, speed.load) == (True, "concurrency")


def clients(rate, slowness, start_s=0.0, seed=0):
    """64 of them, each asking again when it was answered."""
    noise = np.exp(0.01 * np.random.default_rng(seed).standard_normal(24))
    windows = [window(start_s + 300 * n, rate * noise[n], slowness=slowness) for n in range(24)]
    return [replace(one, running=64.0) for one in windows]


def test_traffic_that_doubled_is_not_comparable_and_says_so():
    compared = compare_windows(side(), side(1e5, seed=1, traffic=2.5))
    assert compared.verdict == "not-comparable"
    assert "the request rate grew by 15" in compared.reason
    assert "same weekday" in compared.remedy


def test_few_sub_windows_are_not_comparable():
    compared = compare_windows(side(num=4), side(1e5, seed=1))
    assert compared.verdict == "not-comparable"
    assert "4 sub-windows before and 24 after" in compared.reason


def test_no_sub_windows_are_not_comparable():
    assert compare_windows([], []).verdict == "not-comparable"


def test_the_same_mean_from_other_lengths_is_not_comparable():
    short_and_long = np.array([0.5, 0, 0, 0, 0, 0.5, 0])
    after = [
        replace(one, prompt_lengths=Histogram(LENGTHS, short_and_long * one.num_requests, 600 * one.num_requests))
        for one in side(1e5, seed=1)
    ]
    compared = compare_windows(side(), after)
    assert compared.verdict == "not-comparable"
    assert "spread differently" in compared.reason


def test_a_log_without_counters_is_compared_by_tokens_at_equal_concurrency():
    unknown = dict.fromkeys(
        ["num_requests", "arrivals", "prompt_tokens", "output_tokens", "prompt_lengths", "num_steps", "itl", "ttft"]
    )
    before = [replace(one, **unknown) for one in side()]
    after = [replace(one, **unknown, output_tokens_per_s=1.2 * one.output_tokens_per_s) for one in side(1e5, seed=1)]
    assert compare_windows(before, after).verdict == "improved"


def test_a_target_of_ones_own_begins_at_the_next_bound():
    compared = compare_windows(side(), side(1e5, seed=1), itl_bound_s=0.06)
    tail = next(change for change in compared.changes if change.measure == "itl-tail")
    assert "tokens that took more than 75 ms" in tail.title


def test_the_share_above_a_bound_is_exact():
    counted = Histogram(np.array([1.0, 2.0, np.inf]), np.array([6.0, 3.0, 1.0]), 12.0)
    assert share_above(counted, 1.0) == pytest.approx(0.4)
    assert share_above(counted, 1.5) is None
    assert tail_bound([counted]) == 2.0


@settings(max_examples=15)
@given(
    slowness=st.sampled_from([0.75, 0.9, 1.0, 1.1, 1.3]),
    traffic=st.sampled_from([0.9, 1.0, 1.1, 2.5]),
    seed=st.integers(0, 50),
)
def test_swapped_sides_swap_the_verdict_and_the_order_within_a_side_does_not_matter(slowness, traffic, seed):
    before, after = side(seed=seed), side(1e5, seed=seed + 1, slowness=slowness, traffic=traffic)
    forth = compare_windows(before, after)
    back = compare_windows(after, before)
    assert back.verdict == OPPOSITE.get(forth.verdict, forth.verdict)
    for one, other in zip(forth.changes, back.changes, strict=True):
        turned = 1 / (1 + one.change) - 1 if one.scale == "ratio" else -one.change
        assert other.change == pytest.approx(turned, abs=1e-9)
    shuffle = np.random.default_rng(seed).permutation(len(before))
    assert compare_windows([before[n] for n in shuffle], [after[n] for n in shuffle[::-1]]) == forth
