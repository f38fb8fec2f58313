"""What runs over time say of the step time, on recordings of an H200."""

from pathlib import Path

import numpy as np
import pytest

from maitre.calibration import fit_step_time
from maitre.recording import StepRecord, load_recording, recorded_workload
from maitre.search.paced_evidence import busy_steps_s, read_paced_steps
from maitre.simulator.surface import ReplayedSurface
from maitre.trial.recorded import recorded_server
from maitre.trial.replay_check import recorded_prior

RECORDINGS = Path(__file__).parents[1] / "data/recordings"


def record(ends, starts):
    return StepRecord({"output_end_s": np.array(ends), "schedule_start_s": np.array(starts)})


def test_time_without_requests_is_not_the_steps():
    # the second step was scheduled while the first ran; before the third nobody was there for 8 s
    steps = record(ends=[1.0, 2.0, 11.0], starts=[0.0, 0.5, 10.0])
    assert busy_steps_s(steps) == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("share", [60, 90])
def test_steps_of_an_open_loop_take_as_long_as_those_of_a_burst(share):
    """So a step time that was learned in one explains the other, and its windows may teach it."""
    fitted, burst = load_recording(RECORDINGS / "qwen2.5-7b-lognormal.json")
    step_time = fit_step_time([burst[0], burst[-1]], recorded_prior(fitted), "").step_time
    recording, runs = load_recording(RECORDINGS / f"qwen2.5-7b-lognormal-open-{share}.json")
    surface = ReplayedSurface(
        recorded_workload(recording), recorded_server(recording), step_time, lambda _: recording.num_gpu_blocks
    )
    for run in runs:
        evidence = read_paced_steps(surface, run.recorded.cell, run)
        assert evidence.seconds.sum() == pytest.approx(busy_steps_s(run).sum())
        assert len(evidence.seconds) > 50
        assert abs(evidence.total_log_excess(step_time.coefficients)) < 0.03


def test_a_schedule_of_its_own_is_not_taken_for_slowness():
    fitted, burst = load_recording(RECORDINGS / "qwen2.5-7b-lognormal.json")
    step_time = recorded_prior(fitted).step_time
    surface = ReplayedSurface(
        recorded_workload(fitted), recorded_server(fitted), step_time, lambda _: fitted.num_gpu_blocks
    )
    half = burst[0].first(burst[0].num_steps // 2)
    evidence = read_paced_steps(surface, burst[0].recorded.cell, half)
    assert evidence.simulated == pytest.approx(evidence.features.sum(axis=0))
