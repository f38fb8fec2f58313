"""`maitre profile prometheus:…` says of an hour of traffic what is true of it, whoever keeps the metrics."""

import importlib.util
import json
from pathlib import Path

import pytest

from maitre.cli import main

pytestmark = pytest.mark.prometheus

spec = importlib.util.spec_from_file_location("azure_hour", Path(__file__).with_name("azure_hour.py"))
hour = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hour)

WINDOW = ("--since", "2023-11-14T22:13:20Z", "--until", "2023-11-14T23:12:05Z")
"""The hour, to the second."""


@pytest.fixture(scope="module", params=["prometheus", "victoria-metrics"])
def server(request, start_server):
    """Keeps the same hour in four spellings, told apart by a label, and a second model beside it."""
    histories = [hour.history(spelling=name, spelt=name.split()[0]) for name in hour.SPELLINGS]
    histories.append(hour.history(model="small", every=2, spelt="twice"))
    histories.append(hour.history(model="large", spelt="twice"))
    histories.append(hour.history(engines=("0", "1"), spelt="engines"))
    return start_server(request.param, history="\n".join(histories), prefix="/kept/here")


@pytest.fixture
def profile(server, capsys):
    """Runs `maitre profile` on the server; returns exit code, stdout and stderr."""

    def call(*arguments):
        with pytest.raises(SystemExit) as finished:
            main(["profile", f"prometheus:{server.url}", *map(str, arguments)])
        return finished.value.code, *capsys.readouterr()

    return call


def told(profile, *arguments):
    code, out, err = profile(*WINDOW, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("spelling", hour.SPELLINGS)
def test_means_are_exact_and_percentiles_lie_within_their_bounds(profile, spelling):
    record = told(profile, "--where", f"spelt={spelling.split()[0]}")
    assert record["num_requests"] == pytest.approx(hour.NUM_REQUESTS, rel=0.005)
    for key, family in (("prompt", "vllm:request_prompt_tokens"), ("output", "vllm:request_generation_tokens")):
        lengths = record[f"{key}_tokens"]
        assert lengths["mean"] == pytest.approx(hour.mean(family), rel=0.002)
        truth = dict(zip(("p50", "p90", "p95", "p99"), hour.HOUR[f"{key}_percentiles"], strict=True))
        for percentile, value in truth.items():
            assert lengths[percentile]["low"] < value <= lengths[percentile]["high"]
    assert record["prompt_tokens"]["max"] == {"low": 10_000, "high": None}


def test_rate_concurrency_and_the_rest(profile):
    record = told(profile, "--where", "spelt=relabelled")
    in_flight = hour.HOUR["vllm:num_requests_running"]
    assert record["name"] == "Qwen/Qwen2.5-14B"
    assert record["rate_rps"] == pytest.approx(hour.NUM_REQUESTS / (hour.NUM_STEPS * 15), rel=0.006)
    assert record["rate_per_minute_rps"]["p50"] == pytest.approx(5.5, rel=0.1)
    assert 1.1 < record["burstiness"] < 2.5
    assert record["concurrency_mean"] == pytest.approx(sum(in_flight) / len(in_flight), rel=0.03)
    assert record["concurrency_p95"] == pytest.approx(50, abs=2)
    assert record["mean_latency_s"] == pytest.approx(hour.mean("vllm:e2e_request_latency_seconds"), rel=0.01)
    assert record["little_concurrency"] == pytest.approx(record["concurrency_mean"], rel=0.1)
    assert record["prefix_cache_hit_rate"] == pytest.approx(0.25, rel=0.01)
    assert record["finished_reasons"] == {"stop": record["num_requests"]}
    assert record["output_share_of_max_tokens"] == pytest.approx(211 / 1024, rel=0.02)
    assert {finding["code"] for finding in record["findings"]} == {"wide-bounds", "prefixes-not-rebuilt"}


def test_engines_are_added_up(profile):
    record = told(profile, "--where", "spelt=engines")
    assert record["num_requests"] == pytest.approx(2 * hour.NUM_REQUESTS, rel=0.005)
    assert record["concurrency_mean"] == pytest.approx(2 * 36.7, rel=0.05)
    assert record["prompt_tokens"]["mean"] == pytest.approx(hour.mean("vllm:request_prompt_tokens"), rel=0.002)


def test_of_several_models_one_must_be_chosen(profile):
    code, out, err = profile(*WINDOW, "--where", "spelt=twice")
    assert (code, out) == (2, "")
    assert "2 models finished requests: large (1" in err
    assert "small (" in err
    assert "--where model=large" in err
    assert told(profile, "--where", "model=small", "--where", "spelt=twice")["name"] == "small"


def test_a_window_without_traffic_or_labels_that_nothing_has(profile):
    code, out, err = profile("--since", "2023-11-14T20:00Z", "--until", "2023-11-14T21:00Z")
    assert (code, out) == (2, "")
    assert "has no metrics of vLLM" in err or "no request finished" in err
    code, _, err = profile(*WINDOW, "--where", "namespace=elsewhere")
    assert code == 2
    assert "check the address and the filters" in err


def test_the_requests_drawn_have_the_mean_the_buckets_and_the_rate(profile, tmp_path):
    stored = tmp_path / "hour.json"
    told(profile, "--where", "spelt=relabelled", "--num-requests", 4000, "-o", stored)
    drawn = json.loads(stored.read_text())
    assert len(drawn["prompt_tokens"]) == 4000
    assert sum(drawn["prompt_tokens"]) / 4000 == pytest.approx(hour.mean("vllm:request_prompt_tokens"), rel=0.002)
    assert sum(drawn["output_tokens"]) / 4000 == pytest.approx(hour.mean("vllm:request_generation_tokens"), rel=0.002)
    counted = [sum(column) for column in zip(*hour.HOUR["vllm:request_prompt_tokens"]["counts"], strict=True)]
    long = sum(counted[-2:]) / hour.NUM_REQUESTS
    assert sum(length > 5000 for length in drawn["prompt_tokens"]) / 4000 == pytest.approx(long, abs=1 / 4000)
    assert 4000 / drawn["arrival_s"][-1] == pytest.approx(5.5, rel=0.03)
    assert "independent" in drawn["source"]


def test_people_read_bounds_and_what_is_not_known(profile):
    code, out, err = profile(*WINDOW, "--where", "spelt=relabelled")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    for part in ("1,000 to 2,000", "finished", "independent", "--custom-histogram-buckets", "in flight: 3"):
        assert part in words
