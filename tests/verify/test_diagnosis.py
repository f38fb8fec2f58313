"""One verdict for a window, told as stories of servers."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from maitre.metric_series import MetricSeries
from maitre.verify.deployment import Deployment
from maitre.verify.diagnosis import judge
from maitre.verify.evidence import LogFailure, gather

spec = importlib.util.spec_from_file_location("server_series", Path(__file__).with_name("server_series.py"))
of = importlib.util.module_from_spec(spec)
spec.loader.exec_module(of)
counter, gauge, latencies, server = of.counter, of.gauge, of.latencies, of.server

KNOWN = Deployment(max_num_seqs=256, max_num_batched_tokens=8192, kv_tokens=500_000)
ONE_MODE = [0, 0, 0.3, 0.5, 0.2]


def judged(series, deployment=KNOWN, **options):
    return judge(gather(series, deployment, **options))


def test_nobody_waits_and_nothing_preempts():
    answer = judged([*server(), *latencies(ONE_MODE)])
    assert answer.verdict == "healthy"
    assert answer.may_stay
    assert [one.answer for one in answer.confirmations] == ["yes", "yes", "yes"]


# the queue


def test_running_stands_at_max_num_seqs_and_the_pool_is_nearly_empty():
    answer = judged(server(running=np.full(240, 8), waiting=16, kv_usage=0.022), Deployment(max_num_seqs=8))
    assert answer.verdict == "seq-capped"
    assert answer.findings[0].remedy_code == "raise-max-num-seqs"
    assert "max_num_seqs 8" in answer.summary
    assert answer.confirmations[0].answer == "no"


def test_a_limit_that_is_not_known_shows_as_a_plateau():
    answer = judged(server(running=np.full(240, 64), waiting=30, kv_usage=0.2), Deployment())
    assert answer.verdict == "seq-capped"
    assert "64" in answer.summary


def test_without_a_plateau_and_without_a_limit_the_queue_stays_unexplained():
    answer = judged(server(running=30, waiting=20, kv_usage=0.2), Deployment())
    assert answer.verdict == "cannot-tell"
    assert "--max-num-seqs" in answer.findings[0].remedy


def test_slots_and_pool_are_both_full():
    answer = judged(server(running=np.full(240, 256), waiting=30, kv_usage=0.92))
    assert answer.verdict == "kv-bound"
    assert answer.findings[0].remedy_code == "more-memory"


def test_the_pool_is_full_and_requests_wait():
    answer = judged(server(running=60, waiting=30, kv_usage=np.full(240, 0.99)))
    assert answer.verdict == "kv-bound"


def test_the_next_prompt_does_not_fit_though_the_pool_has_room():
    lengths = [counter("request_prompt_tokens_sum", 4 * 150_000), counter("request_prompt_tokens_count", 4)]
    answer = judged([*server(running=3, waiting=5, kv_usage=0.8, prompt_tokens_per_s=0), *lengths])
    assert answer.verdict == "kv-bound"
    assert "next prompt" in answer.summary


def test_steps_are_filled_up_to_the_token_budget():
    busy = server(running=60, waiting=40, kv_usage=0.3, prompt_tokens_per_s=9000, steps_per_s=12)
    answer = judged(busy, Deployment(max_num_seqs=256, max_num_batched_tokens=1024))
    assert answer.verdict == "raise-token-budget"
    assert answer.findings[0].remedy_code == "raise-token-budget"


def test_neither_limit_binds_and_it_says_what_it_is_not():
    answer = judged(server(running=20, waiting=10, kv_usage=0.1, prompt_tokens_per_s=100, steps_per_s=50))
    assert answer.verdict == "cannot-tell"
    assert {reason.split(":")[0] for reason in answer.findings[0].against} == {
        "not slots",
        "not KV blocks",
        "not the token budget",
    }


def test_requests_for_other_adapters_take_turns():
    answer = judged(
        server(running=2, waiting=6, kv_usage=0.03, prompt_tokens_per_s=10),
        KNOWN.model_copy(update={"enable_lora": True}),
    )
    assert answer.verdict == "other"
    assert answer.findings[0].remedy_code == "raise-max-loras"


def test_most_of_those_who_wait_are_deferred():
    reasons = [
        gauge("num_requests_waiting_by_reason", np.full(240, number), reason=reason)
        for reason, number in (("deferred", 9), ("capacity", 1))
    ]
    answer = judged([*server(running=20, waiting=10, kv_usage=0.2, prompt_tokens_per_s=10), *reasons])
    assert answer.verdict == "other"
    assert "deferred" in answer.summary


def test_bursts_that_pass_are_no_queue():
    waiting = np.where(np.arange(240) % 7 == 0, 5.0, 0.0)
    answer = judged([*server(waiting=waiting), *latencies(ONE_MODE)])
    assert answer.verdict == "healthy"
    assert "bursts-wait" in {finding.code for finding in answer.findings}


def test_a_busy_third_of_the_day_is_not_lost_in_the_quiet_rest():
    busy = np.arange(240) < 80
    answer = judged(
        server(running=np.where(busy, 32, 4), waiting=np.where(busy, 20, 0), kv_usage=np.where(busy, 0.3, 0.05)),
        Deployment(max_num_seqs=32),
    )
    assert answer.verdict == "seq-capped"


def test_one_engine_of_two_queues():
    sick = server(running=np.full(240, 12), waiting=3, kv_usage=0.25, engine="0")
    well = server(running=9, kv_usage=0.5, engine="1", seed=1)
    answer = judged([*sick, *well], Deployment(max_num_seqs=12))
    assert answer.verdict == "seq-capped"
    assert "engine 0" in answer.summary
    assert "uneven-engines" in {finding.code for finding in answer.findings}


# the pool


@pytest.mark.parametrize(("limit", "verdict"), [(60, "lower-max-num-seqs"), (256, "kv-bound")])
def test_preempting(limit, verdict):
    answer = judged(
        server(running=np.full(240, 60), waiting=5, kv_usage=0.98, preemptions_per_s=0.2),
        Deployment(max_num_seqs=limit),
    )
    assert answer.verdict == verdict
    assert answer.findings[0].remedy_code == "lower-max-num-seqs"
    assert answer.confirmations[1].value == pytest.approx(12)


def test_a_counter_that_has_not_moved_for_an_hour_is_no_preemption():
    series = [one for one in server() if "preemptions" not in one.name]
    old = MetricSeries("vllm:num_preemptions_total", {}, 15.0 * np.arange(240), np.full(240, 5000.0))
    assert judged([*series, old]).verdict == "healthy"


def test_the_pool_fills_up_while_nobody_waits():
    rise = 0.912 + 0.046 * np.arange(9) / 8
    answer = judged(server(running=np.full(9, 8), kv_usage=rise, num_samples=9, tokens_per_s=240, requests_per_s=0))
    assert answer.verdict == "kv-bound"
    assert answer.findings[0].value == pytest.approx(110, rel=0.1)
    assert "preempt" in answer.summary


def test_each_request_holds_a_quarter_of_the_pool_whatever_its_length():
    series = [
        MetricSeries(f"vllm:{name}", {"engine": "0"}, np.array([np.nan]), np.array([value]))
        for name, value in (("num_requests_running", 1), ("kv_cache_usage_perc", 0.255), ("num_preemptions_total", 165))
    ]
    answer = judged(series, Deployment(max_num_seqs=4, kv_tokens=356_667))
    assert answer.verdict == "lower-max-num-seqs"
    assert "90,950 tokens" in answer.summary
    assert answer.findings[0].remedy.startswith("--max-num-seqs 3")


# the latency


def test_tokens_at_two_paces():
    answer = judged([*server(), *latencies([0, 0.7, 0.02, 0, 0, 0, 0.02, 0.2, 0.06])])
    assert answer.verdict == "other"
    assert answer.findings[0].remedy_code == "lower-token-budget"
    assert answer.confirmations[2].answer == "no"


# the load


def test_an_idle_server_gets_no_advice():
    answer = judged(server(running=0, kv_usage=0, tokens_per_s=0, requests_per_s=0, prompt_tokens_per_s=0))
    assert answer.verdict == "cannot-tell"
    assert "idle" in answer.summary
    assert answer.findings[0].remedy_code == "measure-more"


def test_hardly_any_load():
    answer = judged(server(running=np.tile([0, 0, 0, 1], 60), kv_usage=0.01, requests_per_s=0.05))
    assert answer.verdict == "not-saturated"


def test_a_closed_loop_of_clients():
    answer = judged(server(running=np.full(240, 24), kv_usage=0.3))
    assert answer.verdict == "client-limited"
    assert "24 requests in flight" in answer.summary


def test_real_demand_and_a_pool_that_is_half_empty():
    answer = judged([*server(running=30, kv_usage=0.25), *latencies(ONE_MODE)])
    assert answer.verdict == "defaults-suffice"


# defects


def test_nothing_is_admitted_though_the_pool_is_free():
    answer = judged(
        server(running=np.zeros(240), waiting=6, kv_usage=0, tokens_per_s=0, prompt_tokens_per_s=0, requests_per_s=0)
    )
    assert answer.verdict == "bug-in-vllm"


def test_blocks_that_belong_to_nobody():
    answer = judged(
        server(running=np.zeros(240), kv_usage=0.4, tokens_per_s=0, prompt_tokens_per_s=0, requests_per_s=0)
    )
    assert answer.verdict == "bug-in-vllm"
    assert "never freed" in answer.summary


def test_requests_run_and_no_token_comes():
    answer = judged(server(running=20, kv_usage=0.7, tokens_per_s=0, prompt_tokens_per_s=0, requests_per_s=0))
    assert answer.verdict == "bug-in-vllm"


# what makes the metrics unusable


def test_one_look_is_no_steady_state():
    answer = judged(server(num_samples=1, running=np.array([5.0]), kv_usage=np.array([0.3])))
    assert answer.verdict == "cannot-tell"
    assert answer.findings[0].code == "too-few-samples"


def test_gauges_that_are_not_there_are_named():
    answer = judged([counter("request_decode_time_seconds_count", 1)])
    assert answer.verdict == "cannot-tell"
    assert "API server" in answer.findings[0].remedy


def test_several_processes_behind_one_address():
    assert judged(server(), is_contradictory=True).findings[0].code == "one-of-several-processes"


def test_a_server_that_ran_out_of_memory_under_load():
    answer = judged([], failures=[LogFailure("out-of-memory", "CUDA out of memory.")])
    assert answer.verdict == "other"
    assert answer.findings[0].remedy_code == "lower-gpu-memory-utilization"


@pytest.mark.parametrize("shift", [0.0, 1.7e9])
def test_the_clock_does_not_matter(shift):
    moved = [MetricSeries(one.name, one.labels, one.time_s + shift, one.values) for one in server(waiting=5)]
    assert judged(moved).verdict == judged(server(waiting=5)).verdict
