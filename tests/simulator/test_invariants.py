"""What holds for every workload under every setting of the scheduler."""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitre.errors import DoesNotFitError, UsageError
from maitre.records import Workload
from maitre.simulator.block_keys import assign_block_keys
from maitre.simulator.block_pool import BlockPool, PrefixCachingBlockPool
from maitre.simulator.replay import replay_arrivals, replay_at_once
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.scheduler import Scheduler
from maitre.simulator.sequence import Sequence
from maitre.simulator.step_time import StepTime

STEP_TIME = StepTime(a0=0.01, b0=1e-4, c0=1e-6, a1=0.012, b1=1e-4, c1=1e-6, d1=1e-8, knee=4, graph_sizes=(1, 2, 4))

thoroughly = settings(deadline=None, max_examples=100)


@st.composite
def workloads(draw):
    lengths = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 25)), min_size=1, max_size=14))
    gaps = [draw(st.sampled_from([0.0, 0.001, 0.02, 0.3])) for _ in lengths]
    hashes, chunk = None, None
    if draw(st.booleans()):
        chunk = draw(st.sampled_from([2, 4, 8, 12]))
        hashes = [
            tuple(draw(st.integers(0, 2)) for _ in range(draw(st.integers(0, -(-prompt // chunk)))))
            for prompt, _ in lengths
        ]
    return Workload(
        name="any",
        source="drawn",
        prompt_tokens=[prompt for prompt, _ in lengths],
        output_tokens=[output for _, output in lengths],
        arrival_s=np.cumsum(gaps),
        prefix_hashes=hashes,
        prefix_block_tokens=chunk,
    )


@st.composite
def servers(draw):
    """A workload and rules under which each of its requests fits into the pool."""
    workload = draw(workloads())
    block_size = draw(st.sampled_from([1, 4, 8, 16]))
    largest = int((-(-(workload.prompt_tokens + workload.output_tokens) // block_size)).max())
    max_num_seqs = draw(st.integers(1, 8))
    rules = SchedulerRules(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.sampled_from([0, 1, 5, 20, 500])),
        num_gpu_blocks=1 + largest + draw(st.sampled_from([0, 1, 3, 10, 1000])),
        block_size=block_size,
        enable_prefix_caching=draw(st.booleans()),
        whole_prompt_gate=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.05, 0.3])),
        async_scheduling=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 7])),
        exempt_lone_request=draw(st.booleans()),
        priority_policy=draw(st.booleans()),
        reuse_unhashed_first=draw(st.booleans()),
    )
    return workload, rules


def sequences_of(workload, rules, priorities):
    keys = assign_block_keys(workload, rules.block_size)
    lengths = zip(workload.prompt_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
    return [Sequence(i, *pair, priority=priorities[i], block_keys=keys[i]) for i, pair in enumerate(lengths)]


def scheduler_of(workload, rules, sequences):
    pool: BlockPool | PrefixCachingBlockPool = BlockPool(rules.num_usable_blocks, rules.block_size)
    if rules.enable_prefix_caching:
        num_keys = int((workload.prompt_tokens + workload.output_tokens).sum()) + 12 * workload.num_requests
        pool = PrefixCachingBlockPool(
            rules.num_usable_blocks, rules.block_size, num_keys, reuse_unhashed_first=rules.reuse_unhashed_first
        )
    return Scheduler(rules, pool)


def serve(scheduler, sequences, arrivals):
    """Every step, with the scheduler in the state that it left behind and who was running before without a token."""
    position = 0
    while position < len(sequences) or scheduler.has_requests:
        while position < len(sequences) and arrivals[position] <= scheduler.tick:
            scheduler.add_request(sequences[position])
            position += 1
        last_tokens_in_flight = [s for s in scheduler.running if s.is_ending and s.release_tick > scheduler.tick]
        step = scheduler.schedule()
        if step is not None:
            yield step, [s for s in last_tokens_in_flight if s.is_running]


@st.composite
def running_servers(draw):
    """Sequences with priorities on a scheduler, and the ticks before which they arrive."""
    workload, rules = draw(servers())
    count = workload.num_requests
    priorities = draw(st.lists(st.integers(-1, 1), min_size=count, max_size=count))
    arrivals = np.cumsum(draw(st.lists(st.sampled_from([0, 0, 1, 5, 40]), min_size=count, max_size=count)))
    sequences = sequences_of(workload, rules, priorities)
    return scheduler_of(workload, rules, sequences), sequences, arrivals.tolist()


def bytes_of(replay):
    return {
        name: {key: array.tobytes() for key, array in value.items()} if isinstance(value, dict) else value.tobytes()
        for name, value in asdict(replay).items()
        if value is not None
    }


@thoroughly
@given(running_servers())
def test_every_request_gets_exactly_its_tokens(server):
    scheduler, sequences, arrivals = server
    steps = [step for step, _ in serve(scheduler, sequences, arrivals)]

    assert [s.num_output_tokens for s in sequences] == [s.output_tokens for s in sequences]
    first_tokens = len(sequences)
    steady_tokens = sum(step.num_steady_decodes for step in steps)
    assert first_tokens + steady_tokens + len(scheduler.token_gaps) == sum(s.output_tokens for s in sequences)
    for s in sequences:
        assert 0 <= s.first_scheduled_step <= s.first_token_step <= s.last_token_step < len(steps)
        assert s.last_token_step - s.first_token_step >= s.output_tokens - 1


@thoroughly
@given(running_servers())
def test_tokens_are_computed_once_unless_a_preemption_took_them_or_the_cache_had_them(server):
    scheduler, sequences, arrivals = server
    computed = sum(step.num_decodes + step.prefill_tokens for step, _ in serve(scheduler, sequences, arrivals))

    needed = sum(s.prompt_tokens + s.output_tokens - 1 for s in sequences)
    recomputed = sum(s.num_recomputed_tokens for s in sequences)
    cached = sum(s.num_cached_tokens for s in sequences)
    if scheduler.rules.enable_prefix_caching:
        assert computed <= needed + recomputed - cached
    else:
        assert computed == needed + recomputed
        assert cached == 0


@thoroughly
@given(running_servers())
def test_every_token_but_the_last_is_new_in_exactly_one_step(server):
    scheduler, sequences, arrivals = server
    new = [step.num_decodes + step.prefill_tokens for step, _ in serve(scheduler, sequences, arrivals)]
    for step, beyond in scheduler.new_tokens_beyond:
        new[step] += beyond

    assert min(new) >= 0
    assert sum(new) == sum(s.prompt_tokens + s.output_tokens - 1 for s in sequences)


@thoroughly
@given(running_servers())
def test_blocks_are_never_lost_nor_invented(server):
    scheduler, sequences, arrivals = server
    usable = scheduler.rules.num_usable_blocks
    assert all(0 <= step.num_free_blocks <= usable for step, _ in serve(scheduler, sequences, arrivals))
    assert scheduler.pool.num_free == usable


@thoroughly
@given(running_servers())
def test_no_step_exceeds_the_token_budget_or_the_slots(server):
    scheduler, sequences, arrivals = server
    for step, _ in serve(scheduler, sequences, arrivals):
        assert 0 < step.num_decodes + step.prefill_tokens <= scheduler.rules.max_num_batched_tokens
        assert step.num_decodes + step.num_prefills <= step.num_running <= scheduler.rules.max_num_seqs


@thoroughly
@given(running_servers())
def test_nobody_is_left_out_while_there_is_room(server):
    scheduler, sequences, arrivals = server
    rules, pool = scheduler.rules, scheduler.pool
    for step, last_tokens_in_flight in serve(scheduler, sequences, arrivals):
        budget_left = rules.max_num_batched_tokens - step.num_decodes - step.prefill_tokens
        if budget_left == 0 or step.num_preemptions:
            continue
        assert step.num_decodes + step.num_prefills == step.num_running - len(last_tokens_in_flight)
        if step.num_waiting and step.num_running < rules.max_num_seqs:
            first = scheduler.waiting[0]
            watermark = int(rules.watermark * rules.num_gpu_blocks) if step.num_running else 0
            num_cached = pool.find_cached_tokens(first)
            first_chunk = min(first.num_tokens - num_cached, rules.long_prefill_token_threshold or np.inf, budget_left)
            must_fit = first.num_tokens if rules.whole_prompt_gate else num_cached + int(first_chunk)
            assert pool.num_needed(first, must_fit, num_cached) + watermark > pool.num_free


@thoroughly
@given(servers())
def test_fast_forward_changes_nothing_when_all_are_there_at_once(server):
    workload, rules = server
    fast = replay_at_once(workload, rules)
    assert bytes_of(fast) == bytes_of(replay_at_once(workload, rules, fast_forward=False))
    assert bytes_of(fast) == bytes_of(replay_at_once(workload, rules))


@thoroughly
@given(servers())
def test_fast_forward_changes_nothing_when_requests_arrive(server):
    workload, rules = server
    fast = replay_arrivals(workload, rules, STEP_TIME)
    assert bytes_of(fast) == bytes_of(replay_arrivals(workload, rules, STEP_TIME, fast_forward=False))
    assert bytes_of(fast) == bytes_of(replay_arrivals(workload, rules, STEP_TIME))


@thoroughly
@given(servers())
def test_time_goes_forward_and_nobody_is_served_before_arriving(server):
    workload, rules = server
    replay = replay_arrivals(workload, rules, STEP_TIME)

    assert replay.step_end_s is not None
    assert np.all(np.diff(replay.step_end_s, prepend=0.0) > 0)
    assert np.all(replay.step_end_s[replay.first_token_step] > workload.arrival_s)
    busy_s = replay.steps_s(STEP_TIME).sum()
    assert replay.step_end_s[-1] >= busy_s - 1e-9


@thoroughly
@given(servers())
def test_the_server_is_idle_only_when_nobody_is_there(server):
    workload, rules = server
    replay = replay_arrivals(workload, rules, STEP_TIME)

    assert replay.step_end_s is not None
    start_s = replay.step_end_s - replay.steps_s(STEP_TIME)
    idle = np.flatnonzero(start_s[1:] > replay.step_end_s[:-1] + 1e-9)
    for step in idle:
        begun = workload.arrival_s < replay.step_end_s[step] - 1e-9
        assert np.all(replay.step_end_s[replay.last_token_step[begun]] <= replay.step_end_s[step] + 1e-9)


def test_a_request_larger_than_the_pool_is_refused():
    workload = Workload(name="long", source="drawn", prompt_tokens=[100], output_tokens=[30])
    assert replay_at_once(workload, SchedulerRules(1, 64, 1 + 9)).num_steps == 31
    with pytest.raises(DoesNotFitError, match="request 0") as error:
        replay_at_once(workload, SchedulerRules(1, 64, 9))
    assert "leave such requests out" in error.value.hint


def test_a_budget_below_one_token_a_slot_is_refused():
    with pytest.raises(UsageError, match="at least max_num_seqs"):
        SchedulerRules(max_num_seqs=65, max_num_batched_tokens=64, num_gpu_blocks=100)


def test_requests_too_short_for_a_block_leave_nothing_in_the_cache():
    workload = Workload(
        name="short",
        source="drawn",
        prompt_tokens=[3, 3],
        output_tokens=[2, 2],
        prefix_hashes=[(1,), (1,)],
        prefix_block_tokens=16,
    )
    replay = replay_at_once(workload, SchedulerRules(1, 64, 100, enable_prefix_caching=True))
    assert replay.num_cached_tokens.tolist() == [0, 0]
