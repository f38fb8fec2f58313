"""Native histograms, and classic ones that were turned into them (NHCB), have no `_bucket` series at all."""

import json

import pytest

from maitre.cli import main
from maitre.metric_series import Histogram
from maitre.workload import Selection
from maitre.workload.prometheus import describe_served, read_prometheus

NAMES = [
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:e2e_request_latency_seconds",
    "vllm:num_requests_running",
    "vllm:request_success_total",
]


def sample(buckets, total):
    """One row as Prometheus 3 writes it: filled buckets alone, numbers as strings."""
    written = [[0, str(low), str(high), str(count)] for low, high, count in buckets]
    count = sum(count for *_, count in buckets)
    return [{"metric": {}, "histogram": [1700003600, {"count": str(count), "sum": str(total), "buckets": written}]}]


def value(number, **labels):
    return {"metric": labels, "value": [1700003600, str(number)]}


CUSTOM_BOUNDS = {
    "sum by (model_name) (histogram_count": [value(60, model_name="m")],
    'sum(increase({__name__="vllm:request_prompt_tokens",model_name="m"}': sample(
        [("-Inf", 100, 10), (100, 200, 20), (500, 1000, 30)], 28_000
    ),
    'sum(increase({__name__="vllm:request_generation_tokens",model_name="m"}': sample(
        [("-Inf", 100, 50), (1000, "+Inf", 10)], 16_000
    ),
    'sum(increase({__name__="vllm:e2e_request_latency_seconds"': sample([(1, 2.5, 60)], 120.0),
    "finished_reason": [value(50, finished_reason="stop"), value(10, finished_reason="length")],
}


def test_custom_bounds_are_read_as_they_are(start_recorded):
    served = read_prometheus(start_recorded(NAMES, CUSTOM_BOUNDS), Selection(since="1h"))
    described = describe_served(served)
    assert (described.name, described.num_requests) == ("m", 60)
    assert described.prompt_tokens.mean == pytest.approx(28_000 / 60)
    assert described.prompt_tokens.p50.model_dump() == {"low": 100, "high": 200}
    assert described.prompt_tokens.p90.model_dump() == {"low": 500, "high": 1000}
    assert described.output_tokens.p50.model_dump() == {"low": 0, "high": 100}
    assert described.output_tokens.max.model_dump() == {"low": 1000, "high": None}
    assert described.mean_latency_s == 2.0
    assert described.finished_reasons == {"stop": 50, "length": 10}


def test_exponential_bounds_give_narrow_percentiles(start_recorded):
    fine = [(2 ** (i / 4), 2 ** ((i + 1) / 4), 1) for i in range(20, 40)]
    answers = CUSTOM_BOUNDS | {
        part: sample(fine, 20 * 250) for part in CUSTOM_BOUNDS if part.startswith("sum(increase") and "tokens" in part
    }
    described = describe_served(read_prometheus(start_recorded(NAMES, answers), Selection(since="1h")))
    median = described.prompt_tokens.p50
    assert median.high / median.low == pytest.approx(2**0.25)
    assert "wide-bounds" not in {finding.code for finding in described.findings}


def test_requests_are_drawn_from_them_by_the_command_line(start_recorded, tmp_path, capsys):
    stored = tmp_path / "w.json"
    address = start_recorded(NAMES, CUSTOM_BOUNDS)
    with pytest.raises(SystemExit) as finished:
        main(["profile", f"prometheus:{address}", "--num-requests", "60", "-o", str(stored), "--json"])
    assert finished.value.code == 0
    assert json.loads(capsys.readouterr().out)["rate_rps"] == pytest.approx(60 / 86_400)
    drawn = json.loads(stored.read_text())
    assert sum(drawn["prompt_tokens"]) == 28_000
    assert sum(drawn["output_tokens"]) == 16_000
    assert sum(length > 1000 for length in drawn["output_tokens"]) == 10


def test_classic_series_count_where_both_are_kept(start_recorded):
    names = [*NAMES, "vllm:request_prompt_tokens_bucket", "vllm:request_prompt_tokens_count"]
    rows = [value(3, le="10"), value(4, le="20.0"), value(4, le="+Inf"), value(44)]
    answers = {
        "sum by (model_name) (increase": [value(4, model_name="m")],
        'sum by (le) (increase({__name__="vllm:request_prompt_tokens_bucket"': rows,
        "count by (le)": [value(1, le="10"), value(1, le="20.0"), value(1, le="+Inf")],
    } | CUSTOM_BOUNDS
    prompt = read_prometheus(start_recorded(names, answers), Selection(since="1h")).prompt
    assert isinstance(prompt, Histogram)
    assert (prompt.upper.tolist(), prompt.counts.tolist()) == ([10.0, 20.0, float("inf")], [3.0, 1.0, 0.0])


def test_engines_with_other_bounds_count_at_the_bounds_that_all_have(start_recorded):
    names = [*NAMES, "vllm:request_prompt_tokens_bucket", "vllm:request_prompt_tokens_count"]
    rows = [value(3, le="10"), value(1, le="15"), value(6, le="20.0"), value(1, le="20"), value(9, le="+Inf")]
    members = [value(2, le="10"), value(1, le="15"), value(1, le="20.0"), value(1, le="20"), value(2, le="+Inf")]
    answers = {
        "sum by (model_name) (increase": [value(9, model_name="m")],
        'sum by (le) (increase({__name__="vllm:request_prompt_tokens_bucket"': rows,
        "count by (le)": members,
    } | CUSTOM_BOUNDS
    prompt = read_prometheus(start_recorded(names, answers), Selection(since="1h")).prompt
    assert (prompt.upper.tolist(), prompt.counts.tolist()) == ([10.0, 20.0, float("inf")], [3.0, 4.0, 2.0])


def test_a_bucket_without_a_bound_is_passed_over(start_recorded):
    names = [*NAMES, "vllm:request_prompt_tokens_bucket", "vllm:request_prompt_tokens_count"]
    answers = {
        "sum by (model_name) (increase": [value(4, model_name="m")],
        'sum by (le) (increase({__name__="vllm:request_prompt_tokens_bucket"': [
            value(3, le="10"), value(9, le="ten"), value(4, le="+Inf"), value(44),
        ],
        "count by (le)": [value(1, le="10"), value(1), value(1, le="ten"), value(1, le="+Inf")],
    } | CUSTOM_BOUNDS  # fmt: skip
    prompt = read_prometheus(start_recorded(names, answers), Selection(since="1h")).prompt
    assert (prompt.upper.tolist(), prompt.counts.tolist()) == ([10.0, float("inf")], [3.0, 1.0])
