"""What was measured becomes a recording, and the recording answers as the server did."""

import json

import numpy as np
import pytest

from maitre.errors import SystemFailure
from maitre.recording import StepRecord, load_recording
from maitre.records import Cell
from maitre.trial import RecordedEngine
from maitre.trial.live_recording import record_trials, write_recording
from maitre.trial.replay_check import replay_recording

SMALL, LARGE = (Cell(max_num_seqs=seqs, max_num_batched_tokens=256) for seqs in (4, 16))
OF_THE_CLIENT = {"engine", "client_cpu_share", "client_lag_p99_s", "spoiled_by"}


@pytest.fixture
def record(make_engine, traffic, tmp_path):
    """Measure some cells, and write the recording."""

    def record(cells, workload=traffic, *, gpu=None, open_loop=False, **options):
        with make_engine(workload=workload, open_loop=open_loop, **options) as engine:
            facts = engine.start(cells[0])
            runs = [engine.measure(cell) for cell in cells]
        trials = [(run.trial, run.steps) for run in runs]
        recorded = record_trials(facts, workload, trials, model="m", gpu=gpu, open_loop=open_loop)
        write_recording(tmp_path / "recording.json", *recorded)
        return trials, tmp_path / "recording.json"

    return record


def test_a_burst_is_answered_as_it_was_measured(record):
    trials, path = record([SMALL, LARGE, SMALL])
    engine = RecordedEngine(path)
    assert engine.cells == [SMALL, LARGE]
    assert not engine.is_open_loop
    assert engine.workload.arrival_s is None
    for trial, steps in trials[:2]:
        answer = engine.measure(trial.cell)
        assert answer.trial.model_dump(exclude=OF_THE_CLIENT) == trial.model_dump(exclude=OF_THE_CLIENT)
        assert all(np.array_equal(answer.steps.columns[name], values) for name, values in steps.columns.items())
    short = engine.measure(SMALL, lambda steps: steps.num_steps >= 100)
    assert (short.trial, short.steps.num_steps) == (None, 100)


def test_requests_at_their_own_times_are_answered_as_they_were_measured(record, traffic):
    timed = traffic.model_copy(update={"arrival_s": np.linspace(0, 0.5, 40)})
    ((trial, _),), path = record([LARGE], timed, open_loop=True)
    engine = RecordedEngine(path)
    assert engine.is_open_loop
    answer = engine.measure(LARGE).trial
    assert answer.model_dump(exclude=OF_THE_CLIENT) == trial.model_dump(exclude=OF_THE_CLIENT)


def test_a_recording_of_a_burst_is_replayed_exactly(record):
    """The scheduler of the server here preempts otherwise than vLLM's; with four slots it does not have to."""
    _, path = record([SMALL], step_s=0.005)
    report = replay_recording(path, [SMALL])
    assert (report.open_loop, report.gpu) == (False, "NVIDIA H200")
    assert report.cells[0].num_steps == report.cells[0].recorded_num_steps


def test_a_recording_of_requests_at_their_own_times_is_not_claimed_to_be(record, traffic):
    timed = traffic.model_copy(update={"arrival_s": np.linspace(0, 0.5, 40)})
    _, path = record([LARGE], timed, open_loop=True)
    assert replay_recording(path, []).open_loop


def test_each_start_has_the_pool_that_it_had(record):
    _, path = record([SMALL, LARGE], restart=True, num_gpu_blocks=33)
    recording, runs = load_recording(path)
    assert (recording.num_gpu_blocks, [run.recorded.num_gpu_blocks for run in runs]) == (65, [33, 33])
    assert RecordedEngine(path).measure(SMALL).trial.num_gpu_blocks == 33


def test_runs_that_were_cut_short_or_left_no_steps_are_left_out(make_engine, traffic, make_trial):
    with make_engine() as engine:
        facts = engine.start(SMALL)
        whole = engine.measure(SMALL)
    cut = whole.trial.model_copy(update={"cut_short": True})
    trials = [(cut, StepRecord(whole.steps.columns)), (make_trial(4, 256, 1.0), None)]
    about = {"model": "m", "gpu": None, "open_loop": False}
    assert record_trials(facts, traffic, trials, **about) is None
    recording, arrays = record_trials(facts, traffic, [*trials, (whole.trial, whole.steps)], **about)
    assert [str(cell.cell) for cell in recording.cells] == ["4x256"]
    assert sorted(arrays) == ["4_256_0", "4_256_0_requests"]


def test_the_users_gpu_counts_only_where_the_drivers_name_says_nothing(make_engine, traffic):
    with make_engine() as engine:
        facts = engine.start(SMALL)
        run = engine.measure(SMALL)
    for told, named, kept in [("NVIDIA H200", "H100", "NVIDIA H200"), ("cpu", "H100", "H100"), ("cpu", None, "cpu")]:
        changed = facts.model_copy(update={"gpu": told})
        recording, _ = record_trials(changed, traffic, [(run.trial, run.steps)], model="m", gpu=named, open_loop=False)
        assert recording.gpu == kept


def test_both_files_are_whole_or_not_there(record, tmp_path):
    _, path = record([SMALL])
    assert sorted(file.name for file in tmp_path.glob("recording*")) == ["recording.json", "recording.npz"]
    content = json.loads(path.read_text())
    assert content["schema"] == "maitre-recording-1"
    assert content["server"]["max_num_seqs"] == 16
    recording, _ = load_recording(path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(SystemFailure, match="cannot be written"):
        write_recording(tmp_path / "file" / "recording.json", recording, {})
