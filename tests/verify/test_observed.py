"""What is seen at the last look: every public scrape and log, and what must not be added up or taken for zero."""

import json
from pathlib import Path

import numpy as np
import pytest

from maitre.metric_series import MetricSeries
from maitre.verify.observed import STALE_S, observed
from maitre.verify.sources.from_log import read_log
from maitre.verify.sources.saved_scrapes import read_dumps


def passes(expected, got):
    """As shared/cases/README.md compares."""
    if not isinstance(expected, dict):
        return got is None if expected is None else got == expected
    if got is None:
        return False
    if "value" in expected:
        return abs(got - expected["value"]) <= expected.get("abs", expected.get("rel", 0) * abs(expected["value"]))
    return expected.get("min", got) <= got <= expected.get("max", got)


def series_of(path):
    content = [path.read_bytes()]
    if path.suffix == ".prom":
        return read_dumps([(path.name, content)]).series
    return read_log(content, path.name).series


def metrics_cases(shared_path):
    for case in json.loads((shared_path / "cases" / "cases.json").read_text("utf-8")):
        if case["kind"] == "metrics":
            yield case, observed([one for name in case["files"] for one in series_of(shared_path / "cases" / name)])


def test_every_public_case_is_observed_as_it_must_be(shared_path):
    num_checked, wrong = 0, []
    for case, found in metrics_cases(shared_path):
        facts = case["expect"] | {
            key: value for key, value in case.get("also", {}).items() if key in type(found).model_fields
        }
        num_checked += len(facts)
        wrong += [
            (case["id"], key, getattr(found, key)) for key in facts if not passes(facts[key], getattr(found, key))
        ]
    assert not wrong
    assert num_checked >= 32


def test_the_counter_in_v0_warnings_is_a_lower_bound(shared_path):
    bounds = {case["id"]: found.is_lower_bound for case, found in metrics_cases(shared_path)}
    assert [name for name, is_bound in bounds.items() if is_bound] == ["log-v0-preemption-counter"]


def test_a_real_scrape_is_observed_whole():
    """Of vLLM 0.32.0 on a CPU, 100 KV blocks of 32 tokens, under load."""
    found = observed(series_of(Path(__file__).parent / "data" / "vllm-0.32.0-busy.prom"))
    assert (found.running, found.waiting, found.preemptions_total, found.engines) == (5, 48, 5, 1)
    assert found.kv_usage == pytest.approx(97 / 99)
    assert found.itl_family == "vllm:inter_token_latency_seconds"
    assert (found.num_gpu_blocks, found.block_size, found.kv_tokens) == (100, 32, 3200)


def gauge(name, values, every_s=15.0, start_s=0.0, **labels):
    values = np.asarray(values, dtype=float)
    return MetricSeries(f"vllm:{name}", labels, start_s + every_s * np.arange(len(values)), values)


def test_nothing_is_not_zero():
    found = observed([])
    assert found.engines == 0
    assert all(value in {None, False} for name, value in found if name != "engines")


def test_the_last_look_counts_and_what_is_no_number_does_not():
    found = observed([gauge("num_requests_running", [3, 5, np.nan, -1]), gauge("num_requests_waiting", [np.nan, -2])])
    assert (found.running, found.waiting) == (5, None)


def test_of_two_families_the_newer_counts_alone():
    found = observed([gauge("gpu_cache_usage_perc", [0.9]), gauge("kv_cache_usage_perc", [0.2])])
    assert found.kv_usage == 0.2
    both = [gauge("time_per_output_token_seconds_count", [1]), gauge("inter_token_latency_seconds_count", [1])]
    assert observed(both).itl_family == "vllm:inter_token_latency_seconds"
    assert observed(both[:1]).itl_family == "vllm:time_per_output_token_seconds"


def test_the_request_mean_is_not_the_inter_token_latency():
    assert observed([gauge("request_time_per_output_token_seconds_count", [1])]).itl_family is None


def test_a_server_that_is_gone_is_not_added_to_the_one_that_came():
    gone = gauge("num_requests_running", [7, 7], instance="a")
    came = gauge("num_requests_running", [4, 4], start_s=STALE_S + 100, instance="b")
    late = gauge("num_requests_running", [2, 2], start_s=STALE_S, instance="c")
    assert observed([gone, came, late]).running == 6


def test_engines_that_a_log_sums_up_are_counted():
    line = (
        "INFO 07-28 06:40:59 [loggers.py:118] 4 Engines Aggregated: Avg prompt throughput: 1.0 tokens/s, "
        "Avg generation throughput: 240.0 tokens/s, Running: 32 reqs, Waiting: 0 reqs, GPU KV cache usage: 50.0%"
    )
    found = observed(read_log([line.encode()], "a.log").series)
    assert (found.engines, found.running, found.kv_usage) == (4, 32, 0.5)
