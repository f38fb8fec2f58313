"""Which metrics a deployment has: by vLLM's version, by a scrape, by what Prometheus lists."""

import json

import pytest

from maitre.errors import InputError, UnsupportedError, UsageError
from maitre.export import Queries, metrics_of_scrape, metrics_of_version
from maitre.export.queries import quantile

SCRAPE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.4
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 0.0
vllm:num_preemptions_total{engine="0",model_name="m"} 0.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e9
python_info{version="3.12"} 1.0
"""


def test_a_version_has_what_it_shows_by_default():
    assert metrics_of_version("0.8.5").find("vllm:kv_cache_usage_perc") is None
    assert metrics_of_version("0.8.5").find("vllm:gpu_cache_usage_perc")
    assert metrics_of_version("0.11.0").find("vllm:gpu_cache_usage_perc") is None  # hidden
    assert metrics_of_version("v0.10.2rc1+cu130").find("vllm:inter_token_latency_seconds_bucket")
    assert metrics_of_version("0.99").written == metrics_of_version("0.33.0").written


def test_a_histogram_is_its_three_kinds_of_samples():
    written = metrics_of_version("0.26.0").written
    assert {name for name in written if name.startswith("vllm:time_to_first")} == {
        f"vllm:time_to_first_token_seconds_{end}" for end in ("bucket", "sum", "count")
    }


def test_a_prefix_stands_for_vllm():
    metrics = metrics_of_version("0.26.0", "ray_vllm_")
    assert metrics.find("vllm:num_requests_running") == "ray_vllm_num_requests_running"


@pytest.mark.parametrize("text", ["", "x", "0", "0.26.0 and more", "1.2.3.4.5 6"])
def test_what_is_no_version(text):
    with pytest.raises(UsageError):
        metrics_of_version(text)


def test_a_version_before_the_first_known_one():
    with pytest.raises(UnsupportedError):
        metrics_of_version("0.4.1")


@pytest.mark.parametrize("prefix", ["", "vllm", "9_", "a b_", "vllm-"])
def test_what_begins_no_name(prefix):
    with pytest.raises(UsageError):
        metrics_of_version("0.26.0", prefix)


def test_a_scrape_has_what_is_in_it():
    metrics = metrics_of_scrape(SCRAPE, "a scrape")
    assert metrics.find("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc") == "vllm:gpu_cache_usage_perc"
    assert metrics.find("vllm:num_requests_waiting") is None
    assert metrics.find("vllm:time_to_first_token_seconds_bucket")
    assert metrics.find("vllm:time_to_first_token_seconds_sum") is None


@pytest.mark.parametrize(
    "answer",
    [
        {"data": ["up", "vllm_num_requests_running", "vllm_num_preemptions"]},
        {"data": [{"__name__": "vllm_num_requests_running", "job": "a"}, {"__name__": "vllm_num_preemptions"}]},
        {"data": {"resultType": "vector", "result": [
            {"metric": {"__name__": "vllm_num_requests_running"}, "value": [0, "1"]},
            {"metric": {"__name__": "vllm_num_preemptions"}, "value": [0, "1"]}]}},
    ],
    ids=["label values", "series", "query"],
)  # fmt: skip
def test_what_prometheus_answers_is_read_with_the_names_that_it_has(answer):
    metrics = metrics_of_scrape(json.dumps({"status": "success", **answer}), "an answer")
    assert metrics.written == {
        "vllm:num_requests_running": "vllm_num_requests_running",
        "vllm:num_preemptions_total": "vllm_num_preemptions",
    }


def test_a_histogram_that_prometheus_has_made_native_is_asked_as_a_whole():
    names = ["vllm:time_to_first_token_seconds", "vllm:num_requests_running"]
    queries = Queries(metrics_of_scrape(json.dumps({"data": names}), "an answer"))
    assert queries.missing(quantile("ttft", 95, "5m")) == []
    assert "rate(vllm:time_to_first_token_seconds[5m])" in queries.fill(quantile("ttft", 95, "5m"))


def test_of_two_spellings_of_a_counter_the_one_with_total_counts():
    for names in (
        ["ray_vllm_prompt_tokens", "ray_vllm_prompt_tokens_total"],
        ["vllm_prompt_tokens_total", "vllm_prompt_tokens"],
    ):
        metrics = metrics_of_scrape(json.dumps({"data": names}), "an answer")
        assert metrics.find("vllm:prompt_tokens_total") in {"ray_vllm_prompt_tokens_total", "vllm_prompt_tokens_total"}


def test_a_name_without_vllm_needs_its_prefix():
    scrape = "llm_num_requests_running 3\n"
    with pytest.raises(InputError):
        metrics_of_scrape(scrape, "a scrape")
    assert (
        metrics_of_scrape(scrape, "a scrape", ("llm_",)).find("vllm:num_requests_running") == "llm_num_requests_running"
    )


def test_a_name_that_never_was_is_no_metric():
    with pytest.raises(InputError):
        metrics_of_scrape("vllm:num_waiting_seqs 3\n", "a scrape")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"data": 3}', '{"data": [3, null, [], {}]}', "\x00\x01", "{" * 100_000, "vllm: 3", SCRAPE[:80]],
)
def test_what_is_no_scrape_of_vllm(text):
    with pytest.raises(InputError, match="no vLLM metrics"):
        metrics_of_scrape(text, "a file")


def test_a_name_that_promql_cannot_select_is_refused():
    with pytest.raises(InputError, match=r"vllm\.num_requests_running"):
        metrics_of_scrape(json.dumps({"data": ["vllm.num_requests_running"]}), "a file")
