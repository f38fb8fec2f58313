"""What `/metrics` says of a run, by every name it ever had, and when it betrays that somebody else was served."""

import json

import numpy as np
import pytest

from maitre.trial.load import ClientHealth, LoadResult, RequestOutcome
from maitre.trial.server_metrics import MetricsSample, ServerSide, parse_metrics

HEALTH = ClientHealth(cpu_share=0.1, lag_p50_s=0.0, lag_p99_s=0.0, lag_max_s=0.0)
START_S = 1000.0
CASES = (
    "metrics-v0-idle-old-names", "cache-config-v0-cpu-blocks", "cache-config-tokens-label-hybrid",
    "cache-config-tokens-without-blocks", "metrics-dp2-sum-and-max", "metrics-new-names-only",
)  # fmt: skip
FIELDS = {"running": "num_running", "waiting": "num_waiting", "preemptions_total": "num_preemptions"}


def make_result(spans, num_tokens=10):
    """Requests sent and ended at these times, in seconds from the run's start."""
    outcomes = [
        RequestOutcome(index, sent_s, sent_s, sent_s, last_s, num_tokens, 200, gaps_s=np.zeros(num_tokens - 1))
        for index, (sent_s, last_s) in enumerate(spans)
    ]
    return LoadResult(tuple(outcomes), HEALTH, START_S)


def make_side(during=(), before=(), **after):
    idle = {"num_running": 0, "num_waiting": 0, "num_finished": 100, "num_output_tokens": 5000, "num_preemptions": 3}
    return ServerSide(
        MetricsSample(START_S, **idle | dict(before)),
        tuple(MetricsSample(START_S + at, **facts) for at, facts in during),
        MetricsSample(START_S + 20, **idle | after),
    )


@pytest.mark.parametrize("name", CASES)
def test_public_scrapes_of_all_ages_are_read(shared_path, name):
    cases = {case["id"]: case for case in json.loads((shared_path / "cases" / "cases.json").read_text())}
    sample = parse_metrics((shared_path / "cases" / cases[name]["files"][0]).read_text(), START_S)
    for key, expected in cases[name]["expect"].items():
        field = FIELDS.get(key, key)
        if field in {"num_running", "num_waiting", "num_preemptions", "num_gpu_blocks"}:
            assert getattr(sample, field) == expected, key
        if key == "kv_usage":
            value = expected["value"] if isinstance(expected, dict) else expected
            assert sample.kv_usage == pytest.approx(value, abs=1e-3)


def test_the_newer_of_two_names_counts_and_what_is_no_number_does_not():
    sample = parse_metrics(
        """# HELP vllm:kv_cache_usage_perc KV
vllm:gpu_cache_usage_perc{engine="0"} 0.9
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} NaN
vllm:num_requests_running{model_name="a{b}c",engine="0"} -1
vllm:gpu_prefix_cache_hits_total 7 1700000000000
vllm:num_requests_waiting_by_reason{reason="capacity"} 3
vllm:num_preemptions_created 1.7e9
vllm:request_success_total{finished_reason="length"} 1e3
vllm:request_success_total{finished_reason="abort"} 2.0
""",
        START_S,
    )
    assert (sample.kv_usage, sample.prefix_hits, sample.num_finished) == (0.25, 7, 1002)
    assert (sample.num_running, sample.num_waiting, sample.num_preemptions) == (None, None, None)


def test_counters_are_those_of_the_run_and_usage_is_that_of_the_looks():
    side = make_side(
        [(1, {"kv_usage": 0.2}), (2, {"kv_usage": 0.6}), (3, {})],
        before={"prefix_hits": 100, "prefix_queries": 400},
        num_preemptions=8, prefix_hits=150, prefix_queries=600,
    )  # fmt: skip
    assert (side.num_preemptions, side.cached_token_share) == (5, 0.25)
    assert side.kv_usage == pytest.approx((0.4, 0.6))


def test_a_server_that_shows_nothing_leaves_all_unknown():
    nothing = MetricsSample(START_S)
    side = ServerSide(nothing, (), nothing)
    assert (side.num_preemptions, side.cached_token_share, side.kv_usage) == (None, None, None)
    assert side.other_traffic(make_result([(0, 1)])) == ""


ALONE = {"num_finished": 103, "num_output_tokens": 5030}


def test_our_own_requests_are_no_other_traffic():
    result = make_result([(0, 5), (0, 9), (4, 12)])
    looks = [(1, {"num_running": 1, "num_waiting": 1}), (6, {"num_running": 2}), (11, {"num_running": 1})]
    assert make_side(looks, **ALONE).other_traffic(result) == ""


def test_a_gauge_that_is_late_is_no_other_traffic():
    looks = [(9.5, {"num_running": 2}), (12, {"num_running": 2, "wait_s": 3.0})]
    assert make_side(looks, **ALONE).other_traffic(make_result([(0, 8), (0, 8), (0, 8)])) == ""


@pytest.mark.parametrize(
    ("side", "said"),
    [
        (make_side(before={"num_waiting": 2}, **ALONE), "requests on it before the run began: 2"),
        (make_side(**ALONE | {"num_finished": 104}), "other requests that it finished: 1"),
        (make_side(**ALONE | {"num_output_tokens": 5042}), "other tokens that it generated: 12"),
        (make_side([(11.5, {"num_running": 2})], **ALONE), "requests on it beyond those of the run: 1"),
    ],
)
def test_what_others_do_shows(side, said):
    assert side.other_traffic(make_result([(0, 5), (0, 9), (4, 12)])) == f"the server served others, too: {said}"


def test_a_number_of_blocks_that_no_server_has_is_unknown():
    text = f'vllm:cache_config_info{{num_gpu_blocks="{"1" * 5000}"}} 1\n'
    assert parse_metrics(text, 0.0).num_gpu_blocks is None
    assert parse_metrics(text.replace("1" * 5000, "4321"), 0.0).num_gpu_blocks == 4321
