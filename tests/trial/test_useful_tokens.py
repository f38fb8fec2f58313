"""Useful tokens of the steps that a server recorded: what recomputation adds is taken out where it was."""

import numpy as np
import pytest

from maitre.recording import RunRecord
from maitre.simulator import SchedulerRules, StepTime, replay_at_once
from maitre.trial import replay_run
from maitre.trial.useful_tokens import recorded_useful_tokens
from maitre.workload import load_workload

STEP_TIME = StepTime(a0=8e-3, b0=2e-5, c0=5e-8, a1=1e-3, b1=4e-5, c1=1e-7, d1=4e-9, knee=200)
WORKLOAD = load_workload("lognormal:200:0.8:150:0.8", num_requests=600)


def replayed_and_recorded(rules):
    """The run of a replay, and what a server would have recorded if it did the same."""
    replay = replay_at_once(WORKLOAD, rules)
    ends = np.cumsum(replay.steps_s(STEP_TIME))
    run = replay_run(replay, ends, WORKLOAD, rules)
    starts = np.concatenate([[0.0], ends[:-1]])
    columns = {name: column.astype(float) for name, column in replay.columns.items()}
    requests = {
        "first_scheduled_s": starts[replay.first_scheduled_step],
        "first_token_s": run.first_token_s,
        "num_cached_tokens": replay.num_cached_tokens.astype(float),
    }
    return run, RunRecord(columns | {"schedule_start_s": starts, "output_end_s": ends}, requests)


def test_without_preemptions_every_step_is_exact():
    run, record = replayed_and_recorded(SchedulerRules(32, 512, 4000))
    assert run.num_preemptions == 0
    assert recorded_useful_tokens(record, WORKLOAD).tolist() == run.num_useful_tokens.tolist()


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_with_preemptions_every_tenth_of_the_run_is_right_within_a_per_cent(enable_prefix_caching):
    rules = SchedulerRules(128, 2048, 800, enable_prefix_caching=enable_prefix_caching)
    run, record = replayed_and_recorded(rules)
    found = recorded_useful_tokens(record, WORKLOAD)
    assert run.num_recomputed_tokens > 0.1 * WORKLOAD.total_tokens
    assert found.sum() == pytest.approx(WORKLOAD.total_tokens) == run.num_useful_tokens.sum()
    edges_s = np.linspace(0, run.duration_s, 11)

    def tenths(tokens):
        return np.diff(np.interp(edges_s, run.step_end_s, np.cumsum(tokens)))

    assert tenths(found) == pytest.approx(tenths(run.num_useful_tokens), rel=0.01)
    computed = record.columns["prefill_tokens"] + record.columns["num_decodes"]
    assert np.abs(tenths(computed) / tenths(run.num_useful_tokens) - 1).max() > 0.1
