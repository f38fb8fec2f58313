"""Streams seen by the client, and the figures of their trial: the same definitions as those of a server's records."""

import numpy as np
import pytest

from maitre.records import Cell, Workload
from maitre.trial.client_run import client_trial, token_gaps
from maitre.trial.load import ClientHealth, LoadResult, RequestOutcome
from maitre.trial.server_metrics import MetricsSample, ServerSide

HEALTH = ClientHealth(cpu_share=0.2, lag_p50_s=0.0, lag_p99_s=0.001, lag_max_s=0.01)
CELL = Cell(max_num_seqs=2, max_num_batched_tokens=64)


def stream(index, intended_s, sent_s, token_s, num_tokens=None):
    """A request whose events came at these times."""
    gaps_s = np.diff(token_s)
    count = num_tokens or len(token_s)
    return RequestOutcome(index, intended_s, sent_s, token_s[0], token_s[-1], count, 200, gaps_s=gaps_s)


@pytest.fixture
def workload():
    return Workload(name="w", source="by hand", prompt_tokens=[30, 20, 10], output_tokens=[4, 3, 2])


@pytest.fixture
def result():
    """Two slots: the third request's first token has to wait for the first one's end."""
    outcomes = (
        stream(0, 0.0, 0.5, [1.0, 2.0, 3.0, 5.0]),
        stream(1, 0.0, 0.5, [2.5, 4.5, 6.5]),
        stream(2, 0.0, 0.5, [7.5, 10.5]),
    )
    return LoadResult(outcomes, HEALTH, 100.0)


def trial_of(result, workload, server=None, *, is_burst=True):
    return client_trial(result, workload, CELL, server, engine="attach", is_burst=is_burst)


def test_throughput_is_all_tokens_over_first_send_to_last_token(result, workload):
    trial = trial_of(result, workload)
    assert trial.duration_s == 10.0
    assert (trial.total_tokens_per_s, trial.output_tokens_per_s, trial.requests_per_s) == (6.9, 0.9, 0.3)
    assert (trial.engine, trial.max_num_seqs, trial.num_requests) == ("attach", 2, 3)


def test_latencies_count_from_the_intended_time(result, workload):
    trial = trial_of(result, workload)
    assert (trial.ttft_s.p50, trial.ttft_s.max) == (2.5, 7.5)
    assert (trial.e2e_s.p50, trial.e2e_s.max) == (6.5, 10.5)
    assert (trial.tpot_s.p50, trial.tpot_s.max) == (2.0, 3.0)


def test_gaps_of_a_bursts_ramp_are_left_out_and_others_are_not(result):
    """Both slots have their first token at 2.5 s: gaps that end later count."""
    assert sorted(token_gaps(result, CELL, is_burst=True)) == [1.0, 2.0, 2.0, 2.0, 3.0]
    assert sorted(token_gaps(result, CELL, is_burst=False)) == [1.0, 1.0, 2.0, 2.0, 2.0, 3.0]


def test_more_slots_than_requests_fill_with_the_last_request(result):
    wide = Cell(max_num_seqs=64, max_num_batched_tokens=64)
    assert token_gaps(result, wide, is_burst=True).tolist() == [3.0]


def test_what_nobody_saw_is_unknown(result, workload):
    trial = trial_of(result, workload)
    names = ("num_steps", "num_preemptions", "num_recomputed_tokens", "cached_token_share", "kv_usage", "bound_by")
    assert [getattr(trial, name) for name in names] == [None] * len(names)
    assert (trial.bound_share, trial.spoiled_by, trial.client_cpu_share) == ({}, "", 0.2)


def test_the_servers_counters_come_beside(result, workload):
    before = MetricsSample(100.0, num_preemptions=4, prefix_hits=0, prefix_queries=0, num_finished=7)
    after = MetricsSample(
        112.0, num_preemptions=4, prefix_hits=15, prefix_queries=60, num_finished=10,
        cache_config={"num_gpu_blocks": "99"},
    )  # fmt: skip
    side = ServerSide(before, (MetricsSample(105.0, kv_usage=0.5),), after)
    trial = trial_of(result, workload, side)
    assert (trial.num_preemptions, trial.num_recomputed_tokens, trial.cached_token_share) == (0, 0, 0.25)
    assert (trial.kv_usage, trial.kv_usage_max, trial.num_gpu_blocks) == (0.5, 0.5, 99)
    assert trial.spoiled_by == ""


def test_preemptions_leave_the_recomputed_tokens_unknown(result, workload):
    side = ServerSide(MetricsSample(100.0, num_preemptions=4), (), MetricsSample(112.0, num_preemptions=6))
    trial = trial_of(result, workload, side)
    assert (trial.num_preemptions, trial.num_recomputed_tokens) == (2, None)


def test_everything_that_spoils_a_run_is_said(workload):
    merged = stream(0, 0.0, 0.0, [1.0, 2.0], num_tokens=4)
    busy = HEALTH.model_copy(update={"cpu_share": 0.95})
    result = LoadResult((merged, stream(1, 0, 0, [1, 2, 3]), stream(2, 0, 0, [1, 2])), busy, 100.0)
    side = ServerSide(MetricsSample(100.0, num_finished=5), (), MetricsSample(109.0, num_finished=9))
    reasons = trial_of(result, workload, side).spoiled_by.split("; ")
    assert [reason.split()[0] for reason in reasons] == ["the", "the", "22%"]
    assert "95% of a core" in reasons[0]
    assert "other requests that it finished: 1" in reasons[1]
