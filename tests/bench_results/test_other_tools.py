"""GuideLLM from 0.2 to 0.8, AIPerf and GenAI-Perf."""

import pytest

from maitre.bench_results import compare
from maitre.errors import InputError


def spread(mean, **more):
    """A GuideLLM distribution, the same for every status."""
    figures = {"mean": mean, "median": mean, "max": mean, "count": 10, "total_sum": mean * 10}
    figures |= more | {"percentiles": {"p95": mean * 1.5, "p99": mean * 2}}
    return {"successful": figures, "errored": {"mean": 0.0}, "incomplete": {"mean": 0.0}, "total": figures}


def metrics(rate):
    return {
        "requests_per_second": spread(rate),
        "request_concurrency": spread(4),
        "request_latency": spread(2.0),
        "prompt_token_count": spread(100),
        "output_token_count": spread(20),
        "time_to_first_token_ms": spread(50.0),
        "time_per_output_token_ms": spread(100.0),
        "inter_token_latency_ms": spread(12.0),
        "output_tokens_per_second": spread(20 * rate),
        "tokens_per_second": spread(120 * rate),
    }


def report(version, *stages):
    """A report of (strategy, requests/s, errored requests) stages."""
    benchmarks = []
    for strategy, rate, errored in stages:
        totals = {"successful": 10, "errored": errored, "incomplete": 0, "total": 10 + errored}
        stage = {"duration": 10 / rate, "metrics": metrics(rate)}
        if version < 4:
            stage |= {"args": {"strategy": strategy}, "request_totals": totals}
        else:
            stage["config"] = {"strategy": strategy}
            stage["metrics"]["request_totals"] = totals
        benchmarks.append(stage)
    return {"metadata": {"version": 1}, "benchmarks": benchmarks}


@pytest.mark.parametrize("version", [2, 3, 4, 8])
def test_a_guidellm_report_of_each_schema(load, version):
    (run,) = load(report(version, ({"type_": "concurrent", "streams": 4}, 2.0, 0)))
    assert (run.requests_per_s, run.output_tokens_per_s, run.total_tokens_per_s) == (2.0, 40.0, 240.0)
    assert (run.successful, run.failed, run.concurrency, run.stage) == (10, 0, 4, "concurrent")
    assert (run.latencies["p99_ttft_ms"], run.latencies["mean_e2el_ms"]) == (100.0, 2000.0)
    assert run.latencies["mean_tpot_ms"] == 12.0
    assert (run.recomputed_output_tokens_per_s, run.trust) == (40.0, True)


def test_requests_that_guidellm_counts_as_errored_are_failures(load):
    (run,) = load(report(4, ({"type_": "throughput", "max_concurrency": 64}, 2.0, 3)))
    assert (run.failed, run.trust) == (3, False)


def test_a_constant_rate_stage_that_keeps_up_is_not_saturated(load, codes):
    runs = load(
        report(
            4, ({"type_": "constant", "rate": 2.0}, 2.0, 0), ({"type_": "throughput", "max_concurrency": 64}, 9.0, 0)
        )
    )
    assert [run.label for run in runs] == ["constant@2", "throughput"]
    assert "not-saturated" in codes(runs[0])
    assert "not-saturated" not in codes(runs[1])


def test_a_throughput_stage_below_a_constant_one_is_no_capacity(load):
    runs = load(report(4, ({"type_": "throughput"}, 1.0, 0), ({"type_": "constant", "rate": 4.0}, 4.0, 0)))
    surface = compare(runs)
    assert not surface.trust
    assert "stage" in surface.reasons[0]


def test_a_sweep_of_one_setting_compares_no_limits(load):
    stages = (({"type_": "synchronous"}, 0.5, 0), ({"type_": "throughput", "max_concurrency": 512}, 9.0, 0))
    surface = compare(load(report(4, *stages)))
    assert (surface.verdict, surface.trust) == (None, True)
    assert "one setting" in surface.reasons[0]


AIPERF = {
    "schema_version": "1.1",
    "aiperf_version": "0.8.0",
    "request_throughput": {"unit": "requests/sec", "avg": 10.0},
    "request_latency": {"unit": "ms", "avg": 800.0, "p50": 780.0, "p99": 1200.0},
    "request_count": {"unit": "requests", "avg": 100.0},
    "time_to_first_token": {"unit": "ms", "avg": 90.0, "p99": 200.0},
    "inter_token_latency": {"unit": "ms", "avg": 15.0, "p99": 20.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 500.0},
    "output_sequence_length": {"unit": "tokens", "avg": 50.0},
    "input_sequence_length": {"unit": "tokens", "avg": 200.0},
    "benchmark_duration": {"unit": "sec", "avg": 10.0},
    "input_config": {"loadgen": {"concurrency": 8}},
    "was_cancelled": False,
}


def test_an_aiperf_profile(load):
    (run,) = load(AIPERF)
    assert (run.tool, run.requests_per_s, run.output_tokens_per_s) == ("AIPerf", 10.0, 500.0)
    assert (run.successful, run.failed, run.concurrency, run.duration_s) == (100, None, 8, 10.0)
    assert run.latencies["mean_tpot_ms"] == 15.0
    assert run.total_tokens_per_s == pytest.approx(2500.0)
    assert run.trust


def test_the_newer_aiperf_config_names_phases(load):
    phases = [{"name": "warmup", "concurrency": 2}, {"name": "profiling", "type": "concurrency", "concurrency": 32}]
    (run,) = load(AIPERF | {"input_config": {"phases": phases}})
    assert run.concurrency == 32


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"error_request_count": {"unit": "requests", "avg": 5.0}}, "5 of 105 requests failed"),
        ({"was_cancelled": True}, "cancelled"),
        ({"is_complete": False, "incomplete_reason": "stalled"}, "stalled"),
    ],
)
def test_an_aiperf_run_that_did_not_go_well_is_not_compared(load, change, word):
    (run,) = load(AIPERF | change)
    assert not run.trust
    assert word in run.reasons[0]


def test_a_genai_perf_profile_has_no_version_and_no_duration(load):
    kept = {"request_throughput", "request_latency", "request_count", "output_token_throughput"}
    record = {key: value for key, value in AIPERF.items() if key in kept}
    (run,) = load(record | {"input_config": {"perf_analyzer": {"stimulus": {"concurrency": 16}}}})
    assert (run.tool, run.requests_per_s, run.concurrency) == ("GenAI-Perf", 10.0, 16)


def test_a_csv_profile_with_its_two_tables(load):
    (run,) = load(
        "Metric,avg,min,max,p99,p50\n"
        'Request Latency (ms),"1,800.00",700,1900,1850.00,1795.00\n'
        "Time To First Token (ms),90.00,10,200,200.00,80.00\n"
        "\nMetric,Value\nRequest Throughput (requests/sec),10.00\n"
        "Output Token Throughput (tokens/sec),500.00\nRequest Count,100\nError Request Count,2\n"
    )
    assert (run.requests_per_s, run.output_tokens_per_s) == (10.0, 500.0)
    assert (run.successful, run.failed, run.latencies["mean_e2el_ms"]) == (100, 2, 1800.0)


def test_a_text_that_csv_cannot_read_is_no_csv_profile(load):
    with pytest.raises(InputError, match="JSON"):
        load("[t\rue, false]")
    with pytest.raises(InputError, match=r"result\.txt, line 2: not CSV"):
        load("Metric,avg\n" + "x" * 200_000)


def test_a_csv_profile_may_have_any_line_ends(load):
    (run,) = load("Metric,avg\rRequest Latency (ms),90.00\rRequest Throughput (requests/sec),10.00\r")
    assert (run.requests_per_s, run.latencies) == (10.0, {"mean_e2el_ms": 90.0})


def test_a_rate_that_no_server_reaches_is_none(load):
    line = "[13:44:58]   100% throughput            ({} req/sec avg)\n"
    runs = load(line.format("9" * 400) + line.format("9" * 300) + line.format("0.02"))
    assert [run.requests_per_s for run in runs] == [None, None, 0.02]
    assert compare(runs).metric == "requests_per_s"
