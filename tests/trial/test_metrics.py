"""The figures of a trial, from steps and their ends."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.records import Workload
from maitre.simulator.replay import replay_arrivals, replay_at_once
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.step_time import StepTime
from maitre.slo import LatencyTarget
from maitre.trial import replay_run, summarize
from maitre.trial.latencies import weighted_percentiles

STEP_TIME = StepTime(a0=8e-3, b0=2e-5, c0=5e-8, a1=1e-3, b1=4e-5, c1=1e-7, d1=4e-9, knee=200)


def simulate(workload, rules, step_time=STEP_TIME, **options):
    replay = replay_at_once(workload, rules)
    ends = np.cumsum(replay.steps_s(step_time))
    return replay, ends, summarize(replay_run(replay, ends, workload, rules), workload, engine="test", **options)


def requests(prompts, outputs, **more):
    return Workload(name="w", source="s", prompt_tokens=prompts, output_tokens=outputs, **more)


@st.composite
def runs(draw):
    """A small workload, and rules that can serve it."""
    lengths = draw(st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40)), min_size=1, max_size=25))
    seqs = draw(st.integers(1, 16))
    rules = SchedulerRules(
        seqs, draw(st.integers(seqs, 128)), draw(st.integers(10, 60)), async_scheduling=draw(st.booleans())
    )
    return requests(*zip(*lengths, strict=True)), rules


@given(runs())
def test_every_trial_keeps_the_sums(run):
    workload, rules = run
    replay, ends, trial = simulate(workload, rules)
    assert sum(trial.bound_share.values()) == pytest.approx(1)
    assert all(share >= 0 for share in trial.bound_share.values())
    assert trial.bound_share[trial.bound_by] == max(trial.bound_share.values())
    assert trial.duration_s == ends[-1]
    assert trial.total_tokens_per_s * trial.duration_s == pytest.approx(workload.total_tokens)
    assert trial.output_tokens_per_s * trial.duration_s == pytest.approx(workload.output_tokens.sum())
    assert trial.requests_per_s * trial.duration_s == pytest.approx(workload.num_requests)
    assert 0 < trial.kv_usage <= trial.kv_usage_max * (1 + 1e-12) <= 1 + 1e-12
    assert 0 < trial.ttft_s.p50 <= trial.ttft_s.max <= trial.e2e_s.max == pytest.approx(trial.duration_s)
    computed = int(replay.columns["num_decodes"].sum() + replay.columns["prefill_tokens"].sum())
    last_tokens = workload.num_requests  # nobody computes behind the last token
    assert computed == workload.total_tokens - last_tokens + trial.num_recomputed_tokens


@given(runs())
def test_every_useful_token_belongs_to_one_step(run):
    workload, rules = run
    replay = replay_at_once(workload, rules)
    useful = replay_run(replay, np.cumsum(replay.steps_s(STEP_TIME)), workload, rules).num_useful_tokens
    assert useful.min() >= 0
    assert useful.sum() == workload.total_tokens


def test_tokens_that_are_computed_again_are_not_useful():
    workload = requests([32] * 12, [64] * 12)
    roomy, tight = SchedulerRules(12, 512, 200), SchedulerRules(12, 512, 40)
    _, _, calm = simulate(workload, roomy)
    replay, _, pressed = simulate(workload, tight)
    assert (calm.num_preemptions, calm.num_recomputed_tokens) == (0, 0)
    assert pressed.num_preemptions == replay.num_preemptions.sum() > 0
    assert pressed.num_recomputed_tokens > 0
    assert pressed.total_tokens_per_s * pressed.duration_s == pytest.approx(12 * 96)
    assert pressed.total_tokens_per_s < calm.total_tokens_per_s


def test_the_ramp_of_a_burst_is_left_out_of_the_inter_token_latency():
    workload = requests([1000] * 8, [50] * 8)
    one_second_a_step = StepTime(a0=0.01, b0=0, c0=0, a1=1.0, b1=0, c1=0, d1=0, knee=0)
    replay, _, trial = simulate(workload, SchedulerRules(8, 1000, 10_000), one_second_a_step)
    prompts = replay.columns["num_prefills"] > 0
    gaps = replay.columns["num_steady_decodes"]  # early ones decode beside the prompts of the others
    with_ramp = weighted_percentiles(np.where(prompts, 1.0, 0.01), gaps)
    assert with_ramp.p95 == pytest.approx(1.0)
    assert trial.itl_s.p95 == pytest.approx(0.01)
    assert trial.ttft_s.max == pytest.approx(prompts.sum())


def test_with_arrival_times_nothing_is_left_out_and_waiting_starts_at_the_arrival():
    workload = requests([1000] * 3, [20] * 3, arrival_s=[0.0, 5.0, 10.0])
    one_second_a_prompt = StepTime(a0=0.01, b0=0, c0=0, a1=1.0, b1=0, c1=0, d1=0, knee=0)
    rules = SchedulerRules(8, 1000, 10_000, async_scheduling=False)
    replay = replay_arrivals(workload, rules, one_second_a_prompt)
    trial = summarize(replay_run(replay, replay.step_end_s, workload, rules), workload, engine="test")
    assert trial.ttft_s.p50 == pytest.approx(1)
    assert trial.e2e_s.max == pytest.approx(1.19)
    assert trial.duration_s == pytest.approx(11.19)


def test_a_preempted_stream_stands_still():
    workload = requests([32] * 12, [64] * 12)
    _, _, calm = simulate(workload, SchedulerRules(12, 512, 200))
    _, _, pressed = simulate(workload, SchedulerRules(12, 512, 40))
    assert pressed.itl_s.max > 5 * calm.itl_s.max


def test_time_per_output_token_spreads_a_stall_over_the_whole_answer():
    _, _, alone = simulate(requests([10], [41]), SchedulerRules(4, 64, 10))
    assert alone.tpot_s.p50 == pytest.approx((alone.e2e_s.max - alone.ttft_s.max) / 40)
    _, _, pressed = simulate(requests([32] * 12, [64] * 12), SchedulerRules(12, 512, 40))
    assert pressed.num_preemptions > 0
    assert pressed.tpot_s.max < pressed.itl_s.max / 10


def test_a_burst_with_a_queue_has_a_steady_window_and_one_without_has_none():
    workload = requests([40] * 200, [30] * 200)
    assert simulate(workload, SchedulerRules(8, 256, 200))[2].steady is not None
    assert simulate(workload, SchedulerRules(200, 256, 2000))[2].steady is None


def test_latency_targets_are_held_against_the_run():
    workload, rules = requests([40] * 20, [30] * 20), SchedulerRules(8, 256, 200)
    assert simulate(workload, rules)[2].attainment is None
    limit_s = simulate(workload, rules)[2].e2e_s.p50
    targets = [LatencyTarget(metric="e2e", percent=50, limit_s=limit_s)]
    found = simulate(workload, rules, targets=targets)[2].attainment
    assert found.met
    assert found.share >= 0.5
    assert found.goodput_rps == pytest.approx(found.share * simulate(workload, rules)[2].requests_per_s)


def test_requests_of_one_token_have_no_inter_token_latency():
    _, _, trial = simulate(requests([10, 20], [1, 1]), SchedulerRules(4, 64, 10))
    assert trial.itl_s is None
    assert trial.tpot_s is None
    assert trial.ttft_s.max == trial.e2e_s.max
