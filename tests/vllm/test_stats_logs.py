"""Whole logs: what they say of the load, in order and as series, whoever carried them."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.metric_series import increase
from maitre.vllm.stats_log import AGGREGATED, LOWER_BOUND, read_stats_log, stats_series

NOW_S = 1_796_000_000.0
"""28 November 2026."""


def line(
    second, running=8, engine="Engine 000: ", extra="", head="INFO 07-28 06:40:{:02d} [loggers.py:118] ", usage=50
):
    return (
        f"{head.format(second)}{engine}Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 240.0 tokens/s, "
        f"Running: {running} reqs, Waiting: 0 reqs, {extra}GPU KV cache usage: 50.0%, "
        "Prefix cache hit rate: 0.0%"
    )


def read(text):
    return read_stats_log([text.encode()], NOW_S)


def by_name(series, name):
    return [one for one in series if one.name == name]


def cases_with_samples(shared_path):
    for case in json.loads((shared_path / "cases" / "cases.json").read_text("utf-8")):
        samples = case.get("also", {}).get("stats_samples")
        logs = [shared_path / "cases" / name for name in case["files"] if name.endswith((".log", ".jsonl", ".txt"))]
        if samples and logs:
            yield case["id"], b"".join(path.read_bytes() for path in logs), samples


def test_every_public_log_gives_its_samples_in_order(shared_path):
    num_samples = 0
    for name, content, expected in cases_with_samples(shared_path):
        found = [
            {"running": s.stats.num_running, "waiting": s.stats.num_waiting, "kv_usage": s.stats.kv_usage}
            for s in read_stats_log([content], NOW_S).samples
        ]
        assert len(found) == len(expected), name
        for got, case in zip(found, expected, strict=True):
            want = {key: value["value"] if isinstance(value, dict) else value for key, value in case.items()}
            assert {key: got[key] for key in want} == pytest.approx(want, abs=5e-4), name
        num_samples += len(found)
    assert num_samples >= 6


def test_a_pool_that_fills_can_be_seen_to_fill(shared_path):
    content = (shared_path / "cases" / "dx-kv-creep-waiting-zero.log").read_bytes()
    (usage,) = by_name(stats_series(read_stats_log([content], NOW_S)), "vllm:kv_cache_usage_perc")
    slope = np.polyfit(usage.time_s - usage.time_s[0], usage.values, 1)[0]
    assert (1 - usage.values[-1]) / slope == pytest.approx(110, rel=0.15)


CARRIERS = {
    "plain": "{}",
    "docker logs -t": "2026-07-28T06:40:59.123456789Z {}",
    "coloured": "\x1b[36m(APIServer pid=1)\x1b[0m {}",
    "Kubernetes": "2026-07-28T06:40:59.1Z stdout F {}",
}


@pytest.mark.parametrize("carrier", CARRIERS.values(), ids=CARRIERS)
def test_every_carrier_is_read(carrier):
    log = read("\n".join(carrier.format(line(i, running=i)) for i in range(3)))
    assert [sample.stats.num_running for sample in log.samples] == [0, 1, 2]
    assert np.isfinite([sample.time_s for sample in log.samples]).all()


def test_json_lines_are_read():
    rows = [
        {"asctime": "2026-07-28 06:40:59,000", "levelname": "INFO", "message": line(0, head="")},
        {"log": line(10) + "\n", "stream": "stdout", "time": "2026-07-28T06:41:09.5Z"},
    ]
    first, second = read("\n".join(map(json.dumps, rows))).samples
    assert second.time_s - first.time_s == 10.5


def test_engines_and_places_are_told_apart():
    log = read("\n".join([
        "web-1  | " + line(0, 3), "web-2  | " + line(0, 4), "web-1  | " + line(0, 5, engine="Engine 001: "),
    ]))  # fmt: skip
    running = by_name(stats_series(log), "vllm:num_requests_running")
    assert [(one.engine, one.values.tolist()) for one in running] == [
        (("web-1", "0"), [3]), (("web-2", "0"), [4]), (("web-1", "1"), [5]),
    ]  # fmt: skip


def test_several_engines_in_one_line_are_marked_as_such():
    (running,) = by_name(stats_series(read(line(0, 30, engine="4 Engines Aggregated: "))), "vllm:num_requests_running")
    assert running.labels == {AGGREGATED: "4"}


def test_preemptions_add_up_over_intervals_without_any():
    text = "\n".join([line(0), line(10, extra="Preemptions: 2, "), line(20), line(30, extra="Preemptions: 3, ")])
    (preemptions,) = by_name(stats_series(read(text)), "vllm:num_preemptions_total")
    assert preemptions.values.tolist() == [0, 2, 2, 5]
    assert increase(preemptions) == 5


def test_no_word_of_preemptions_does_not_mean_that_there_were_none():
    assert not by_name(stats_series(read(line(0) + "\n" + line(10))), "vllm:num_preemptions_total")


def test_v0_warnings_are_a_lower_bound(shared_path):
    content = (shared_path / "cases" / "log-v0-preemption-counter.log").read_bytes()
    (preemptions,) = stats_series(read_stats_log([content], NOW_S))
    assert preemptions.name == "vllm:num_preemptions_total"
    assert preemptions.labels == {LOWER_BOUND: "true"}
    assert preemptions.values.tolist() == [1, 101]


def test_v0_hit_rates_are_a_series():
    text = f"{line(0)}\nINFO 07-28 06:41:00 metrics.py:471] Prefix cache hit rate: GPU: 41.25%, CPU: 0.00%"
    rates = by_name(stats_series(read(text)), "vllm:gpu_prefix_cache_hit_rate")
    assert rates[-1].values.tolist() == [0.4125]


def test_lines_without_a_time_keep_their_order():
    log = read("\n".join(line(0, running=i, head="") for i in (5, 3, 4)))
    (running,) = by_name(stats_series(log), "vllm:num_requests_running")
    assert np.isnan(running.time_s).all()
    assert running.values.tolist() == [5, 3, 4]


def test_series_ascend_although_lines_changed_places():
    log = read("\n".join(line(second, running=second) for second in (10, 0, 20)))
    (running,) = by_name(stats_series(log), "vllm:num_requests_running")
    assert running.values.tolist() == [0, 10, 20]


def test_users_texts_are_no_statistics():
    quoting = (
        f"INFO 07-28 06:40:00 [logger.py:43] Received request cmpl-1: prompt: '{line(0)}', params: SamplingParams(n=1)"
    )
    assert read(quoting).samples == ()


@given(st.binary(max_size=300), st.integers(1, 50))
def test_bytes_of_any_kind_and_cut_anywhere_do_no_harm(noise, size):
    content = noise + b"\n" + line(7).encode() + b"\n" + noise
    log = read_stats_log([content[i : i + size] for i in range(0, len(content), size)], NOW_S)
    assert len(log.samples) <= 1
    if noise.isascii() and b"{" not in noise and not noise.startswith((b"\xff\xfe", b"\xfe\xff")):
        assert [sample.stats.num_running for sample in log.samples] == [8]


def test_a_real_server_tells_of_its_load_and_of_each_step():
    """Logged by vLLM 0.32.0 on a CPU: max_num_seqs 8, 512 tokens a step, 100 KV blocks, 46 preemptions."""
    content = (Path(__file__).parent / "data" / "vllm-0.32.0-iterations.log").read_bytes()
    log = read_stats_log([content], NOW_S)
    assert max(sample.stats.num_running for sample in log.samples) == 8
    assert max(sample.stats.num_waiting for sample in log.samples) == 53
    assert max(sample.stats.kv_usage for sample in log.samples) == 1
    (preemptions,) = by_name(stats_series(log), "vllm:num_preemptions_total")
    assert preemptions.labels == {LOWER_BOUND: "true", "engine": "0"}
    assert 1 < preemptions.values[-1] <= 46
    steps = log.iterations
    assert steps.num_context_tokens.max() <= 512
    assert (steps.num_context_requests + steps.num_generation_requests).max() == 8
    assert steps.num_recomputed_tokens.sum() == 18_205
    again = steps.num_recomputed_tokens > 0
    assert again.sum() == 45
    decode_only_s = np.median(steps.elapsed_s[steps.num_prefill_tokens == 0])
    assert np.median(steps.elapsed_s[steps.mixes]) > 4 * decode_only_s
    assert np.median(steps.elapsed_s[again]) > 4 * decode_only_s
