"""A burst that arrives while the first steps run: each request joins before the step that it joined."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from maitre.records import Workload
from maitre.simulator import SchedulerRules, StepTime, replay_arrivals, replay_at_once
from maitre.simulator.replay import replay_joining

STEP_TIME = StepTime(a0=0.01, b0=1e-4, c0=1e-7, a1=0.02, b1=5e-5, c1=1e-7, d1=1e-9, knee=32)
LENGTHS = st.lists(st.tuples(st.integers(1, 90), st.integers(20, 60)), min_size=1, max_size=30)


def make_workload(lengths, arrival_s=None):
    prompts, outputs = zip(*lengths, strict=True)
    return Workload(name="x", source="x", prompt_tokens=prompts, output_tokens=outputs, arrival_s=arrival_s)


def assert_same(one, other):
    for name, column in one.columns.items():
        assert np.array_equal(column, other.columns[name]), name
    assert np.array_equal(one.last_token_step, other.last_token_step)
    assert np.array_equal(one.num_preemptions, other.num_preemptions)


@given(LENGTHS, st.integers(1, 8), st.integers(8, 128), st.booleans())
def test_all_before_the_first_step_are_there_at_once(lengths, seqs, tokens, is_async):
    rules = SchedulerRules(seqs, max(seqs, tokens), 40, async_scheduling=is_async)
    workload = make_workload(lengths)
    joins = np.zeros(len(lengths), dtype=np.int64)
    assert_same(replay_joining(workload, rules, joins), replay_at_once(workload, rules))


@given(LENGTHS, st.integers(1, 8), st.integers(8, 128), st.data())
def test_joining_is_arriving_between_two_steps(lengths, seqs, tokens, data):
    """The steps of arrivals at given times are those of requests that join where these times lie."""
    rules = SchedulerRules(seqs, max(seqs, tokens), 40, async_scheduling=False)
    gaps = st.lists(st.floats(0, 0.02), min_size=len(lengths) - 1, max_size=len(lengths) - 1)
    arrival_s = np.cumsum([0.0, *data.draw(gaps)])  # nobody comes to an idle server
    arrived = replay_arrivals(make_workload(lengths, arrival_s), rules, STEP_TIME)
    starts = np.concatenate([[0.0], arrived.step_end_s[:-1]])
    joins = np.searchsorted(starts, arrival_s)
    workload = make_workload(lengths)
    assert_same(replay_joining(workload, rules, joins), arrived)
    assert_same(replay_joining(workload, rules, joins, fast_forward=False), arrived)
