"""Every form that vLLM's own benchmarks have had."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.bench_results import compare, judge
from maitre.bench_results.vllm_json import read_vllm_json
from maitre.bench_results.vllm_text import read_vllm_text

SERVE_JSON = {
    "num_prompts": 400,
    "request_rate": "inf",
    "max_concurrency": 64,
    "duration": 20.0,
    "completed": 400,
    "failed": 0,
    "total_input_tokens": 200_000,
    "total_output_tokens": 100_000,
    "request_throughput": 20.0,
    "output_throughput": 5000.0,
    "total_token_throughput": 15_000.0,
    "mean_ttft_ms": 120.0,
    "p99_ttft_ms": 400.0,
    "mean_e2el_ms": 3000.0,
}
SERVE = """============ Serving Benchmark Result ============
Successful requests:                     {ok}
Benchmark duration (s):                  20.00
Total input tokens:                      200000
Total generated tokens:                  100000
Request throughput (req/s):              {rate}
Output token throughput (tok/s):         5000.00
Total {T}oken throughput (tok/s):         15000.00
---------------Time to First Token----------------
Mean TTFT (ms):                          120.00
P99 TTFT (ms):                           400.00
----------------End-to-end Latency----------------
Mean E2EL (ms):                          3000.00
==================================================
"""


@pytest.mark.parametrize(
    ("line", "total", "output", "unlabelled"),
    [
        ("Throughput: 6.10 requests/s, 2500.00 tokens/s", None, None, 2500.0),
        ("Throughput: 6.10 requests/s, 2500.00 total tokens/s, 900.00 output tokens/s", 2500.0, 900.0, None),
        ("Throughput: 6.10 requests/s", None, None, None),
    ],
)
def test_the_throughput_line_of_each_version(load, line, total, output, unlabelled):
    (run,) = load(f"INFO 01-01 12:00:00 [x.py:1] noise\n{line}\n")
    figures = (run.requests_per_s, run.total_tokens_per_s, run.output_tokens_per_s, run.tokens_per_s)
    assert figures == (6.1, total, output, unlabelled)
    assert (run.tool, run.trust) == ("vllm bench throughput", True)


def test_a_token_rate_without_a_label_is_kept_apart_and_named(load, codes):
    (run,) = load("Throughput: 6.10 requests/s, 2500.00 tokens/s\n")
    assert codes(run) == {"unlabelled-token-rate"}


def test_totals_below_the_throughput_line_belong_to_it(load):
    (run,) = load(
        "Throughput: 10.00 requests/s, 1500.00 total tokens/s, 500.00 output tokens/s\n"
        "Total num prompt tokens:  1000\nTotal num output tokens:  500\n"
    )
    assert (run.total_input_tokens, run.total_output_tokens) == (1000, 500)


@pytest.mark.parametrize("letter", ["T", "t"])
def test_the_serve_block_of_each_version(load, letter):
    (run,) = load(SERVE.format(ok=400, rate="20.00", T=letter))
    assert (run.requests_per_s, run.total_tokens_per_s, run.output_tokens_per_s) == (20.0, 15000.0, 5000.0)
    assert (run.successful, run.failed, run.num_requests) == (400, None, 400)
    assert run.latencies == {"mean_ttft_ms": 120.0, "p99_ttft_ms": 400.0, "mean_e2el_ms": 3000.0}
    assert run.trust


def test_a_log_with_prefixes_colours_and_dials_before_the_block(load):
    text = (
        "Namespace(model='m', num_prompts=500, max_concurrency=64, request_rate=inf)\n"
        "(EngineCore pid=1) non-default args: {'max_num_seqs': 128, 'max_num_batched_tokens': 4096}\n"
        + "".join(f"\x1b[36m(pid=7)\x1b[0m {line}\n" for line in SERVE.format(ok=400, rate="20.00", T="t").splitlines())
    )
    (run,) = load(text)
    assert (run.max_num_seqs, run.max_num_batched_tokens, run.concurrency) == (128, 4096, 64)
    assert (run.num_requests, run.failed) == (500, 100)
    assert not run.trust


def test_several_blocks_of_one_log_are_several_runs_with_their_own_dials(load):
    blocks = [
        f"vllm serve m --max-num-seqs {seqs} --max-num-batched-tokens=8192\n{SERVE.format(ok=400, rate='20.00', T='t')}"
        for seqs in (64, 128)
    ]
    runs = load("".join(blocks))
    assert [(run.max_num_seqs, run.max_num_batched_tokens) for run in runs] == [(64, 8192), (128, 8192)]


def test_blocks_without_a_header_are_told_apart_by_a_repeated_label(load):
    runs = load("Throughput: 1.00 requests/s\nThroughput: 2.00 requests/s\n")
    assert [run.requests_per_s for run in runs] == [1.0, 2.0]


@given(
    ok=st.integers(1, 10**6),
    rate=st.decimals("0.01", 10**5, places=2),
    remark=st.sampled_from(["", "   ", " <<< new", "\r"]),
)
def test_printed_figures_come_back_whatever_stands_behind_them(ok, rate, remark):
    text = SERVE.format(ok=f"{ok}{remark}", rate=f"{rate}{remark}", T="t")
    (run,) = read_vllm_text(text, "x")
    assert (run.successful, run.requests_per_s) == (ok, float(rate))


def test_serve_json_with_dials_from_metadata(load, serve_json):
    (run,) = load(serve_json(max_num_seqs="256", max_num_batched_tokens="8192", tensor_parallel_size="2"))
    assert (run.max_num_seqs, run.max_num_batched_tokens, run.settings["tensor_parallel_size"]) == (256, 8192, 2)
    assert (run.tool, run.concurrency, run.request_rate, run.trust) == ("vllm bench serve", 64, "inf", True)
    record = json.loads(run.model_dump_json())
    assert (record["requests_per_s"], record["mean_ttft_ms"], record["failed"]) == (20.0, 120.0, 0)


def test_serve_json_before_failed_requests_were_counted(load, serve_json):
    (run,) = load(serve_json(failed=None, completed=380, duration=20.0, request_throughput=19.0))
    assert (run.failed, run.trust) == (20, False)
    assert "20 of 400 requests failed" in run.reasons[0]


def test_appended_results_one_a_line_are_several_runs(load, serve_json):
    lines = "\n".join(json.dumps(serve_json(max_num_seqs=seqs)) for seqs in (32, 64))
    assert [run.max_num_seqs for run in load(lines)] == [32, 64]


def test_throughput_json_counts_prompt_and_output_tokens(load):
    record = {"elapsed_time": 10.0, "num_requests": 100, "total_num_tokens": 50_000}
    (run,) = load(record | {"requests_per_second": 10.0, "tokens_per_second": 5000.0})
    assert (run.requests_per_s, run.total_tokens_per_s, run.tokens_per_s) == (10.0, 5000.0, None)
    assert (run.num_requests, run.duration_s) == (100, 10.0)


def test_latency_output_has_no_throughput(load):
    (run,) = load({"avg_latency": 1.5, "latencies": [1.5], "percentiles": {"99": 1.5}})
    assert (run.latencies, run.trust) == ({"mean_e2el_ms": 1500.0}, False)


def test_a_sweep_names_dials_run_and_failures(load, serve_json):
    measured = [serve_json(max_num_seqs=64, run_number=number) for number in range(2)]
    failed = {
        "run_number": 0,
        "error_type": "RuntimeError",
        "error": "Server exited",
        "serve_overrides": {"max_num_seqs": 1024, "max_num_batched_tokens": 8192},
        "bench_overrides": {"max_concurrency": 64},
    }
    runs = load([*measured, failed])
    assert {run.tool for run in runs} == {"vllm bench sweep"}
    assert [(run.max_num_seqs, run.trust) for run in runs] == [(64, True), (64, True), (1024, False)]
    assert (runs[2].concurrency, "Server exited" in runs[2].reasons[0]) == (64, True)


def test_a_sweep_summary_csv(load, serve_json):
    rows = [serve_json(run_number=number, max_num_seqs=seqs) for number in range(2) for seqs in (32, 64)]
    lines = [",".join(["", *rows[0]])]
    lines += [",".join([str(i), *("" if v is None else str(v) for v in row.values())]) for i, row in enumerate(rows)]
    runs = load("\n".join(lines), "summary.csv")
    assert [(run.max_num_seqs, run.requests_per_s, run.concurrency) for run in runs] == [
        (32, 20.0, 64),
        (64, 20.0, 64),
        (32, 20.0, 64),
        (64, 20.0, 64),
    ]
    assert {run.tool for run in runs} == {"vllm bench sweep"}


def test_auto_tune_result_file(load):
    runs = load(
        "hash:abc\n"
        "max_num_seqs: 128, max_num_batched_tokens: 2048, request_rate: 10, e2el: 450.5, throughput: 9.8, goodput: 9\n"
        "max_num_seqs: 128, max_num_batched_tokens: 4096 does not meet latency requirement 500\n"
        "best_max_num_seqs: 128, best_num_batched_tokens: 2048, best_throughput: 9.8\n"
    )
    assert [(run.max_num_seqs, run.max_num_batched_tokens, run.requests_per_s) for run in runs] == [
        (128, 2048, 9.8),
        (128, 4096, None),
    ]
    assert [run.trust for run in runs] == [True, False]


@pytest.mark.parametrize(
    ("name", "dials"),
    [
        ("mns256_mnbt8k.txt", (256, 8000, None)),
        ("max_num_seqs=64-max_num_batched_tokens=2048.txt", (64, 2048, None)),
        ("SERVE--max_num_seqs=32-max_num_batched_tokens=1024-BENCH--max_concurrency=16/run=0.json", (32, 1024, 16)),
        ("bm_log_128_4096_requestrate_inf.txt", (128, 4096, None)),
        ("llama-3.1-8b.txt", (None, None, None)),
    ],
)
def test_dials_in_a_file_name_fill_what_the_file_does_not_say(load, name, dials):
    (run,) = load("Throughput: 6.10 requests/s, 2500.00 tokens/s\n", name)
    assert (run.max_num_seqs, run.max_num_batched_tokens, run.concurrency) == dials


def test_the_file_itself_counts_more_than_its_name(load, serve_json):
    (run,) = load(serve_json(max_num_seqs=256), "mns64.json")
    assert run.max_num_seqs == 256


ODD = [None, 0, -1, 1e308, 1e-320, "", "x", [], {}, True, "inf", float("nan"), 10**30, "1,000"]


@given(changes=st.dictionaries(st.sampled_from(sorted(SERVE_JSON)), st.sampled_from(ODD), min_size=1, max_size=4))
def test_whatever_a_key_holds_the_answer_is_a_record(changes):
    runs = [read_vllm_json(SERVE_JSON | changes, "x"), read_vllm_json(SERVE_JSON | {"max_num_seqs": 7}, "y")]
    surface = compare([judge(run) for run in runs])
    assert json.loads(surface.model_dump_json())["rows"][0]["source"] == "x"
