"""From a server's records to a trial."""

import numpy as np
import pytest

from maitre.recording import RunRecord
from maitre.records import Cell, Workload
from maitre.simulator import SchedulerRules, StepTime, replay_at_once
from maitre.simulator.step import BOUND_BY, KV_BLOCKS, REQUESTS, SEQS, TOKEN_BUDGET
from maitre.trial import Run, replay_run, summarize
from maitre.trial.measured import measured_run, observed_bound

CELL = Cell(max_num_seqs=8, max_num_batched_tokens=64)
STEP_TIME = StepTime(a0=0.01, b0=1e-4, c0=1e-7, a1=0.002, b1=5e-5, c1=1e-7, d1=1e-9, knee=32)


def recorded_from_replay(workload: Workload) -> tuple[RunRecord, Run]:
    """What the scheduler of a server would record, if it did what the replay does."""
    rules = SchedulerRules(CELL.max_num_seqs, CELL.max_num_batched_tokens, 40)
    replay = replay_at_once(workload, rules)
    ends = np.cumsum(replay.steps_s(STEP_TIME))
    starts = np.concatenate([[0.0], ends[:-1]])
    times = {"schedule_start_s": starts, "output_end_s": ends}
    columns = {name: column.astype(float) for name, column in replay.columns.items()} | times
    requests = {
        "arrival_s": np.zeros(workload.num_requests),
        "first_scheduled_s": starts[replay.first_scheduled_step],
        "first_token_s": ends[replay.first_token_step],
        "last_token_s": ends[replay.last_token_step],
        "num_cached_tokens": np.zeros(workload.num_requests),
    }
    return RunRecord(columns, requests), replay_run(replay, ends, workload, rules)


def test_a_server_that_does_what_the_replay_does_has_the_same_figures():
    generator = np.random.default_rng(0)
    workload = Workload(
        name="x", source="x", prompt_tokens=generator.integers(1, 90, 40), output_tokens=generator.integers(1, 60, 40)
    )
    record, run = recorded_from_replay(workload)
    measured = summarize(measured_run(record, workload, CELL, 40, is_burst=True), workload, engine="live")
    simulated = summarize(run, workload, engine="live")
    assert measured.num_preemptions > 0
    same = (
        "total_tokens_per_s",
        "ttft_s",
        "tpot_s",
        "e2e_s",
        "num_preemptions",
        "kv_usage",
        "kv_usage_max",
        "num_steps",
    )
    for name in same:
        assert getattr(measured, name) == getattr(simulated, name), name
    assert measured.steady.total_tokens_per_s == pytest.approx(simulated.steady.total_tokens_per_s, rel=0.02)
    assert measured.num_recomputed_tokens == pytest.approx(simulated.num_recomputed_tokens, rel=0.2)
    assert sum(measured.bound_share.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("figures", "limit"),
    [
        ({"num_preemptions": 1, "num_waiting": 3}, KV_BLOCKS),
        ({"num_prefills": 1, "prefill_tokens": 60, "num_decodes": 4, "num_waiting": 3}, TOKEN_BUDGET),
        ({"num_decodes": 8, "num_running": 8, "num_waiting": 3}, SEQS),
        ({"num_decodes": 5, "num_running": 5, "num_waiting": 3}, KV_BLOCKS),
        ({"num_decodes": 5, "num_running": 5}, REQUESTS),
    ],
)
def test_what_binds_is_read_off_the_step(figures, limit):
    names = ("num_decodes", "num_prefills", "prefill_tokens", "num_preemptions", "num_running", "num_waiting")
    columns = {name: np.array([float(figures.get(name, 0))]) for name in names}
    bound = observed_bound(columns, CELL)
    assert [BOUND_BY[code] for code in bound] == [BOUND_BY[limit]]
