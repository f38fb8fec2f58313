"""The steady window of a burst: behind the ramp, before the drain."""

import numpy as np
import pytest

from maitre.records import Workload
from maitre.simulator import SchedulerRules, StepTime, replay_arrivals, replay_at_once
from maitre.trial import replay_run
from maitre.trial.steady import RULE, steady_window
from maitre.workload import load_workload

STEP_TIME = StepTime(a0=8e-3, b0=2e-5, c0=5e-8, a1=1e-3, b1=4e-5, c1=1e-7, d1=4e-9, knee=200)
LENGTHS = "lognormal:120:0.8:60:0.8"


def burst(workload, rules):
    replay = replay_at_once(workload, rules)
    return replay_run(replay, np.cumsum(replay.steps_s(STEP_TIME)), workload, rules)


def test_it_begins_a_lifetime_behind_the_plateau_and_ends_when_nobody_waits(make_run):
    ramp = np.array([1, 2, 3])
    run = make_run(num_steps=100, num_running=np.concatenate([ramp, np.full(97, 4)]))  # four run from the fourth second
    window = steady_window(run)  # each request is there for eleven seconds, and in the last ten nobody waits
    assert (window.begin_s, window.end_s) == (4 + 11, 90)
    assert window.rule == RULE


def test_ramp_and_drain_do_not_count(make_run):
    seconds = np.arange(100)
    run = make_run(num_steps=100, num_useful_tokens=np.where((seconds < 5) | (seconds >= 90), 1000, 10))
    window = steady_window(run)
    assert window.total_tokens_per_s == pytest.approx(10)
    assert window.total_tokens_per_s_low == pytest.approx(10)
    assert window.total_tokens_per_s_high == pytest.approx(10)


def test_an_overshoot_at_the_begin_is_no_plateau(make_run):
    num_running = np.concatenate([[1, 2], np.full(3, 30), np.full(95, 20)])
    assert steady_window(make_run(num_steps=100, num_running=num_running)).begin_s == 3 + 11


def test_preempted_requests_that_wait_in_the_drain_do_not_lengthen_it(make_run):
    num_waiting = np.where(np.arange(100) < 80, 5, 0)
    num_waiting[90] = 1
    assert steady_window(make_run(num_steps=100, num_waiting=num_waiting)).end_s == 80


def test_without_a_queue_there_is_none(make_run):
    assert steady_window(make_run(num_waiting=np.zeros(100))) is None


def test_less_than_two_lifetimes_are_none(make_run):
    def ends_at(second):
        return steady_window(make_run(num_steps=100, num_waiting=np.where(np.arange(100) < second, 5, 0)))

    assert ends_at(1 + 3 * 11 - 1) is None
    assert ends_at(1 + 3 * 11).num_batches == 0
    assert ends_at(1 + 3 * 11).total_tokens_per_s_low is None
    assert ends_at(1 + 4 * 11).num_batches == 3


def test_many_lifetimes_are_cut_into_thirty_batches(make_run):
    assert steady_window(make_run(num_steps=1000)).num_batches == 30


def test_requests_at_their_own_times_have_none():
    workload = load_workload(LENGTHS, num_requests=300)
    rules = SchedulerRules(8, 256, 2000)
    timed = Workload(**workload.model_dump() | {"arrival_s": np.zeros(300)})
    replay = replay_arrivals(timed, rules, STEP_TIME)
    assert steady_window(replay_run(replay, replay.step_end_s, timed, rules)) is None
    assert steady_window(burst(timed, rules)) is not None


@pytest.fixture(scope="module")
def long_run():
    """Useful tokens/s in the middle of bursts of many thousand requests."""
    num_tokens = seconds = 0.0
    for seed in (97, 98, 99):
        run = burst(load_workload(LENGTHS, num_requests=10_000, seed=seed), RULES)
        edges_s = [0.1 * run.duration_s, 0.9 * run.duration_s]
        num_tokens += np.diff(np.interp(edges_s, run.step_end_s, np.cumsum(run.num_useful_tokens)))[0]
        seconds += edges_s[1] - edges_s[0]
    return num_tokens / seconds


RULES = SchedulerRules(16, 512, 300)
"""Tight: one request in 25 is preempted."""


def test_the_figure_of_a_short_burst_is_that_of_a_long_one_where_the_whole_run_is_too_slow(long_run):
    runs = [burst(load_workload(LENGTHS, num_requests=150, seed=seed), RULES) for seed in range(30)]
    assert sum(run.num_preemptions for run in runs) > 0
    whole = np.mean([run.num_useful_tokens.sum() / run.duration_s for run in runs])
    windows = [window for run in runs if (window := steady_window(run))]
    steady = np.mean([window.total_tokens_per_s for window in windows])
    assert len(windows) > 20
    assert whole < 0.9 * long_run
    assert steady == pytest.approx(long_run, rel=0.04)


def test_the_interval_holds_the_throughput_of_a_long_run_about_nineteen_times_in_twenty(long_run):
    windows = [steady_window(burst(load_workload(LENGTHS, num_requests=500, seed=s), RULES)) for s in range(40)]
    held = [w.total_tokens_per_s_low <= long_run <= w.total_tokens_per_s_high for w in windows]
    assert 35 <= sum(held) <= 40
    widths = [(w.total_tokens_per_s_high - w.total_tokens_per_s_low) / long_run for w in windows]
    assert np.median(widths) < 0.2
