"""May one result be compared: each doubt, and that a sound result raises none."""

import pytest

from maitre.bench_results import judge
from maitre.bench_results.records import Run

SOUND = {
    "successful": 400,
    "failed": 0,
    "duration_s": 20.0,
    "requests_per_s": 20.0,
    "total_tokens_per_s": 15_000.0,
    "output_tokens_per_s": 5000.0,
    "total_input_tokens": 200_000,
    "total_output_tokens": 100_000,
    "peak_output_tokens_per_s": 6500.0,
    "concurrency": 64,
    "request_rate": "inf",
    "latencies": {"mean_ttft_ms": 120.0, "mean_tpot_ms": 11.0, "mean_e2el_ms": 3000.0, "p99_e2el_ms": 4000.0},
}


def judged(**changes):
    return judge(Run(source="x", tool="vllm bench serve", **(SOUND | changes)))


def latencies(**changes):
    return SOUND["latencies"] | changes


def test_a_sound_result_raises_no_doubt():
    result = judged()
    assert (result.trust, result.reasons, result.findings, result.ignore) == (True, (), (), ())
    assert (result.recomputed_requests_per_s, result.recomputed_total_tokens_per_s) == (20.0, 15_000.0)


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("failed-requests", {"failed": 1}),
        ("failed-requests", {"failed": None, "num_requests": 410}),
        ("no-result", {"failure": "Server exited"}),
        (
            "nothing-served",
            {"requests_per_s": 0.0, "successful": 0, "output_tokens_per_s": 0.0, "total_tokens_per_s": 0},
        ),
        ("no-tokens", {"total_output_tokens": 0, "output_tokens_per_s": 0.0}),
        ("rates-contradict-totals", {"output_tokens_per_s": 5600.0}),
        ("rates-contradict-totals", {"requests_per_s": 30.0}),
        ("little-contradiction", {"latencies": latencies(mean_e2el_ms=4000.0)}),
        ("longer-than-the-model", {"settings": {"max_model_len": 4096, "input_len": 8000, "output_len": 500}}),
        ("no-throughput", dict.fromkeys(["requests_per_s", "total_tokens_per_s", "output_tokens_per_s", "duration_s"])),
    ],
)
def test_what_makes_a_result_incomparable(code, changes):
    result = judged(**changes)
    assert not result.trust
    assert code in {finding.code for finding in result.findings}
    assert all(finding.message and finding.remedy for finding in result.findings)


@pytest.mark.parametrize(
    ("code", "changes", "ignored"),
    [
        ("impossible-peak", {"peak_output_tokens_per_s": 20_132_659.2}, {"peak_output_tokens_per_s"}),
        ("impossible-peak", {"peak_output_tokens_per_s": 4000.0}, {"peak_output_tokens_per_s"}),
        ("itl-burst", {"latencies": latencies(median_itl_ms=0.0, mean_itl_ms=11.0)}, {"median_itl_ms", "mean_itl_ms"}),
        ("itl-of-chunks", {"latencies": latencies(mean_itl_ms=192.59)}, {"mean_itl_ms"}),
        ("impossible-latency", {"latencies": latencies(median_ttft_ms=500, p99_ttft_ms=400)}, {"median_ttft_ms"}),
        ("impossible-latency", {"latencies": latencies(mean_ttft_ms=3500.0)}, {"mean_ttft_ms", "mean_e2el_ms"}),
        ("impossible-latency", {"latencies": latencies(mean_ttft_ms=0.0)}, {"mean_ttft_ms"}),
        ("impossible-latency", {"latencies": latencies(p99_tpot_ms=-1.0)}, {"p99_tpot_ms"}),
        ("averaged-otherwise", {"output_tokens_per_s": 5075.0}, set()),
        ("not-saturated", {"request_rate": 20.5}, set()),
        ("queue-in-ttft", {"max_num_seqs": 1, "concurrency": 64}, set()),
        ("client-below-its-concurrency", {"latencies": latencies(mean_e2el_ms=800.0)}, set()),
        ("no-unit", {"without_unit": ("p95 latency",)}, set()),
    ],
)
def test_what_is_named_without_condemning_the_result(code, changes, ignored):
    result = judged(**changes)
    assert result.trust
    assert code in {finding.code for finding in result.findings}
    assert ignored <= set(result.ignore)


def test_a_client_that_offers_more_than_is_served_measures_capacity():
    assert not judged(request_rate=40.0).findings


def test_rates_that_are_not_printed_follow_from_totals():
    result = judged(requests_per_s=None, total_tokens_per_s=None, output_tokens_per_s=None)
    assert (result.requests_per_s, result.total_tokens_per_s, result.output_tokens_per_s) == (20.0, 15_000.0, 5000.0)


def test_unknown_counts_stay_unknown():
    result = judged(successful=None, failed=None, total_input_tokens=None, total_output_tokens=None)
    assert (result.successful, result.failed) == (None, None)
    assert result.recomputed_total_tokens_per_s is None
    assert result.num_requests == 400


def test_a_rate_rounded_to_two_decimals_is_no_contradiction():
    result = judged(requests_per_s=0.06, duration_s=17.67, successful=1, concurrency=1, failed=0,
                    total_tokens_per_s=None, output_tokens_per_s=None, total_input_tokens=None,
                    total_output_tokens=None, latencies={"mean_e2el_ms": 17_670.0})  # fmt: skip
    assert (result.trust, result.findings) == (True, ())
