"""What a run says: how long its windows took beside what their steps should take, and how far its schedule is off."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.recording import StepRecord
from maitre.records import Cell
from maitre.search.evidence import foresee, read_duration, read_steps

CELL = Cell(max_num_seqs=8, max_num_batched_tokens=128)
shares = st.floats(0.05, 1.0)


def slower(steps, factor):
    return StepRecord({**steps.columns, "output_end_s": steps.step_end_s * factor})


def test_a_run_that_goes_as_the_simulator_says_is_no_surprise(world, truth):
    run = read_steps(world.server, CELL, world.run(CELL), is_complete=True)
    assert run.log_excess(truth) == pytest.approx(np.zeros(len(run.seconds)), abs=1e-12)
    assert run.log_schedule(truth) == pytest.approx(0, abs=1e-12)
    assert run.total_log_excess(truth) == pytest.approx(0, abs=1e-12)


@given(share=shares)
def test_every_step_is_in_one_window_and_windows_are_of_about_32_steps(world, share):
    steps = world.run(CELL, share=share)
    run = read_steps(world.server, CELL, steps, is_complete=False)
    assert run.seconds.sum() == pytest.approx(steps.step_end_s[-1])
    assert run.features.sum(axis=0) == pytest.approx(world.server.features_of(CELL, steps).sum(axis=0))
    assert len(run.seconds) == max(steps.num_steps // 32, 1)


def test_a_run_of_a_few_steps_is_one_window(world, truth):
    run = read_steps(world.server, CELL, world.run(CELL).first(3), is_complete=False)
    assert run.seconds.shape == (1,)
    assert run.features.shape == (1, 7)
    assert np.isfinite(run.log_excess(truth)).all()


@given(share=shares, factor=st.floats(0.2, 5.0))
def test_a_server_that_is_slower_throughout_shows_it_in_every_window_and_any_part(world, truth, share, factor):
    steps = slower(world.run(CELL, share=share), factor)
    run = read_steps(world.server, CELL, steps, is_complete=share == 1)
    assert run.log_excess(truth) == pytest.approx(np.full(len(run.seconds), np.log(factor)), abs=1e-9)
    assert run.total_log_excess(truth) == pytest.approx(np.log(factor), abs=0.02)
    assert run.log_schedule(truth) == pytest.approx(0, abs=0.02)


def test_a_part_of_a_run_is_compared_with_the_same_part_of_the_schedule(world):
    steps = world.run(CELL).first(400)
    run = read_steps(world.server, CELL, steps, is_complete=False)
    assert run.simulated == pytest.approx(run.features.sum(axis=0))
    assert not run.is_complete


def test_preemptions_that_the_simulator_does_not_know_are_the_schedules_not_the_steps(
    make_world, surface, small_pool, truth
):
    cell = Cell(max_num_seqs=16, max_num_batched_tokens=256)
    run = read_steps(surface, cell, make_world(small_pool).run(cell), is_complete=True)
    assert run.log_excess(truth) == pytest.approx(np.zeros(len(run.seconds)), abs=1e-12)
    lost = np.log(small_pool.features([cell])[0] @ truth / (surface.features([cell])[0] @ truth))
    assert lost > 0.1
    assert run.log_schedule(truth) == pytest.approx(lost)
    assert run.total_log_excess(truth) == pytest.approx(lost)


def test_a_run_of_which_only_the_time_is_known_is_one_window_with_the_simulators_work(surface, truth):
    run = read_duration(surface, CELL, 2 * float(surface.features([CELL])[0] @ truth))
    assert run.is_complete
    assert run.log_excess(truth) == pytest.approx([np.log(2)])
    assert run.total_log_excess(truth) == pytest.approx(np.log(2))
    assert run.log_schedule(truth) == pytest.approx(0, abs=1e-12)


def test_what_is_foreseen_is_what_a_run_without_noise_would_show(world, truth):
    expected = foresee(world.server, CELL, truth)
    run = read_steps(world.server, CELL, world.run(CELL), is_complete=True)
    assert expected.log_excess(truth) == pytest.approx(np.zeros(len(expected.seconds)), abs=1e-12)
    assert expected.seconds.sum() == pytest.approx(run.seconds.sum())
    assert expected.features.sum(axis=0) == pytest.approx(run.features.sum(axis=0))
    assert abs(len(expected.seconds) - len(run.seconds)) <= 1
