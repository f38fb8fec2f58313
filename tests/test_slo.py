"""Latency targets as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import UsageError
from maitre.slo import LatencyTarget, parse_latency_target, parse_latency_targets


@pytest.mark.parametrize(
    ("text", "metric", "percent", "limit_s", "written"),
    [
        ("ttft_p95=500ms", "ttft", 95, 0.5, "ttft_p95=500ms"),
        ("itl_p99=50ms", "itl", 99, 0.05, "itl_p99=50ms"),
        ("tpot_p50=0.04", "tpot", 50, 0.04, "tpot_p50=40ms"),
        ("e2e_max=1.5min", "e2e", 100, 90, "e2e_max=90s"),
        (" e2e_p99=20 s ", "e2e", 99, 20, "e2e_p99=20s"),
    ],
)
def test_a_target_names_latency_percentile_and_limit(text, metric, percent, limit_s, written):
    target = parse_latency_target(text)
    assert (target.metric, target.percent, target.limit_s) == (metric, percent, pytest.approx(limit_s))
    assert str(target) == written


@given(st.sampled_from(["ttft", "itl", "tpot", "e2e"]), st.integers(50, 100), st.integers(1, 10**6))
def test_a_target_that_is_written_is_read_as_the_same(metric, percent, milliseconds):
    target = LatencyTarget(metric=metric, percent=percent, limit_s=milliseconds / 1e3)
    again = parse_latency_target(str(target))
    assert (again.metric, again.percent) == (metric, percent)
    assert again.limit_s == pytest.approx(target.limit_s, rel=1e-5)


WRONG = {
    "nothing": ("", "is not a latency target"),
    "no-limit": ("ttft_p95", "is not a latency target"),
    "no-percentile": ("ttft=500ms", "which percentile?"),
    "another-latency": ("latency_p95=1s", "'latency' is not one of ttft, itl, tpot, e2e"),
    "a-mean": ("ttft_mean=1s", "'mean' is not a percentile from p50 to p99, or max"),
    "a-low-percentile": ("ttft_p5=1s", "'p5' is not a percentile"),
    "the-hundredth": ("ttft_p100=1s", "'p100' is not a percentile"),
    "p49": ("ttft_p49=1s", "'p49' is not a percentile"),
    "no-duration": ("ttft_p95=soon", "'soon' is not a duration"),
    "negative": ("ttft_p95=-1s", "'-1s' is not a duration"),
    "zero": ("ttft_p95=0ms", "nothing takes no time"),
    "two-limits": ("ttft_p95=1s=2s", "'1s=2s' is not a duration"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_what_is_no_target_is_refused_with_the_part_that_is_wrong(text, said):
    with pytest.raises(UsageError) as error:
        parse_latency_target(text)
    assert said in str(error.value)
    assert error.value.hint


def test_several_percentiles_of_a_latency_may_have_limits():
    assert len(parse_latency_targets(["ttft_p50=100ms", "ttft_p99=1s", "itl_p99=50ms"])) == 3
    assert parse_latency_targets([]) == ()


def test_one_percentile_has_one_limit():
    with pytest.raises(UsageError, match="ttft_p95 has more than one limit"):
        parse_latency_targets(["ttft_p95=1s", "itl_p99=50ms", "ttft_p95=2s"])
