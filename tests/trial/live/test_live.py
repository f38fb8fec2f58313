"""Measuring a server that maitre starts itself: turned, loaded, cut short, hung, dead and resumed."""

import numpy as np
import pytest

from maitre.errors import UsageError
from maitre.recording import RunRecord
from maitre.records import Cell
from maitre.trial import TrialFailure, loaded_server
from maitre.trial.dials import dial_directory
from maitre.trial.load import processes
from maitre.trial.server import ServerError


def cell(seqs, tokens):
    return Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens)


def starts(tmp_path):
    return sorted(path.name for path in (tmp_path / "study" / "dials").iterdir())


def test_cells_are_measured_on_one_server_with_the_dials_turned(make_engine, traffic, tmp_path):
    with make_engine() as engine:
        narrow, wide = (engine.measure(cell(seqs, 256)) for seqs in (2, 16))
    assert starts(tmp_path) == ["start-1"]
    assert narrow.steps.num_steps > wide.steps.num_steps
    assert narrow.steps.columns["num_running"].max() == 2
    for measurement in (narrow, wide):
        assert isinstance(measurement.steps, RunRecord)
        assert len(measurement.steps.requests["arrival_s"]) == 40
        assert measurement.trial.num_requests == 40
        assert measurement.trial.num_steps == measurement.steps.num_steps
        assert measurement.trial.client_ttft_s is None
    assert narrow.steps.columns["num_decodes"].sum() + 40 == traffic.output_tokens.sum()
    assert wide.trial.num_preemptions > 0


def test_other_flags_take_another_start_and_are_kept_until_they_change(make_engine, tmp_path):
    half = cell(8, 256).model_copy(update={"flags": (("gpu_memory_utilization", "0.5"),)})
    with make_engine() as engine:
        plain = engine.measure(cell(8, 256))
        changed, again = engine.measure(half), engine.measure(half)
    assert starts(tmp_path) == ["start-1", "start-2"]
    assert (plain.trial.flags, changed.trial.cell, again.trial.cell) == ((), half, half)
    logs = [log.read_text() for log in sorted((tmp_path / "study" / "logs").glob("*.log"))]
    assert "--gpu-memory-utilization" not in logs[0]
    assert "--gpu-memory-utilization 0.5" in logs[1]


def test_a_run_that_has_shown_enough_is_dropped_and_the_next_one_is_as_if_it_had_never_been(
    make_engine, traffic, tmp_path
):
    seen = []

    def watch(steps):
        seen.append(steps.num_steps)
        return len(seen) == 2

    with make_engine(step_s=0.01) as engine:
        short = engine.measure(cell(2, 256), watch)
        after = engine.measure(cell(8, 512))
    assert seen == sorted(set(seen))
    assert short.trial is None
    assert short.steps.num_steps == seen[-1]
    assert np.all(np.diff(short.steps.step_end_s) > 0)
    assert starts(tmp_path) == ["start-1"]
    dropped = dial_directory(tmp_path / "study" / "dials" / "start-1").read_run(2).request_columns
    assert np.isnan(dropped["last_token_s"]).sum() > 20
    assert after.steps.columns["prefill_tokens"].sum() == traffic.prompt_tokens.sum()
    assert after.steps.columns["num_decodes"].sum() + 40 == traffic.output_tokens.sum()
    assert len(after.steps.requests["last_token_s"]) == 40


def test_a_watcher_that_never_has_enough_changes_nothing(make_engine):
    with make_engine(step_s=0.01) as engine:
        seen = []
        whole = engine.measure(cell(8, 256), lambda steps: bool(seen.append(steps)))
    assert whole.trial is not None
    assert seen
    for part in seen:
        for name, values in part.columns.items():
            assert np.array_equal(values, whole.steps.columns[name][: part.num_steps]), name


def test_a_watcher_that_fails_is_heard_and_the_server_is_stopped(make_engine):
    def watch(_):
        raise ArithmeticError("no inverse")

    with make_engine(step_s=0.01) as engine, pytest.raises(ArithmeticError):
        engine.measure(cell(2, 256), watch)


def test_a_server_that_keeps_dropped_requests_is_replaced(make_engine, monkeypatch, tmp_path):
    monkeypatch.setattr(loaded_server, "EMPTY_WAIT_S", 0.5)
    with make_engine("keeps", step_s=0.01) as engine:
        assert engine.measure(cell(2, 256), lambda _: True).trial is None
        assert engine.measure(cell(16, 512)).trial is not None
    assert starts(tmp_path) == ["start-1", "start-2"]


def test_a_server_that_stands_still_is_a_hang_and_the_study_goes_on_with_another(make_engine, tmp_path):
    with make_engine("stalls:150", stall_timeout_s=1.5) as engine:
        with pytest.raises(TrialFailure) as caught:
            engine.measure(cell(2, 256))
        failed = caught.value.failed
        assert (failed.code, failed.cell, failed.engine) == ("hang", cell(2, 256), "live")
        assert "1.5 s" in failed.message
        assert failed.remedy
        assert engine.measure(cell(16, 512)).trial is not None
    assert starts(tmp_path) == ["start-1", "start-2"]
    assert list((tmp_path / "study" / "dials" / "start-1").glob("run-2.steps")), "what it had recorded is kept"


def test_a_slow_client_and_a_pause_between_arrivals_are_no_hang(make_engine, traffic):
    late = traffic.model_copy(update={"arrival_s": np.repeat([0.0, 4.0], 20)})
    with make_engine(workload=late, open_loop=True, stall_timeout_s=2.5) as engine:
        trial = engine.measure(cell(16, 512)).trial
    assert trial.duration_s > 3.5


def test_a_server_that_dies_fails_its_cell_and_the_study_goes_on_with_another(make_engine, tmp_path):
    with make_engine("dies:150") as engine:
        with pytest.raises(TrialFailure) as caught:
            engine.measure(cell(2, 256))
        assert caught.value.failed.code == "crash-under-load"
        assert "EngineDeadError" in caught.value.failed.last_lines[-1]
        assert engine.measure(cell(16, 512)).trial is not None
    assert starts(tmp_path) == ["start-1", "start-2"]


def test_refused_requests_fail_their_cell_and_the_server_stays(make_engine, monkeypatch, tmp_path):
    monkeypatch.setattr(loaded_server, "DEATH_WAIT_S", 0.5)
    with make_engine("refuses:2") as engine:
        with pytest.raises(TrialFailure, match=r"40 of 40 requests failed \(40 rejected\): no") as caught:
            engine.measure(cell(2, 256))
        assert caught.value.failed.code == "requests-failed"
        assert engine.measure(cell(16, 512)).trial is not None
    assert starts(tmp_path) == ["start-1"]


def test_a_start_that_fails_is_told(make_engine, monkeypatch):
    monkeypatch.setattr(loaded_server, "DEATH_WAIT_S", 0.5)
    with make_engine("refuses:1") as engine, pytest.raises(ServerError, match="requests failed"):
        engine.start(cell(2, 256))


def test_each_cell_has_a_start_of_its_own_when_asked(make_engine, tmp_path):
    with make_engine(restart=True) as engine:
        facts = engine.start(cell(4, 256))
        trials = [engine.measure(cell(seqs, 256)).trial for seqs in (4, 4, 8)]
    assert (facts.start.max_num_seqs, facts.start.max_num_batched_tokens) == (4, 256)
    assert {trial.engine for trial in trials} == {"restart"}
    assert starts(tmp_path) == ["start-1", "start-2", "start-3"]  # the first serves the first cell, too


def test_a_resumed_study_knows_its_server_without_a_start(make_engine, tmp_path):
    with make_engine() as first:
        facts = first.start(cell(2, 256))
    with make_engine() as second:
        assert second.start(cell(2, 256)) == facts
        assert second.num_starts == 0
        assert second.measure(cell(2, 256)).trial is not None
    assert starts(tmp_path) == ["start-1", "start-2"]
    assert facts.start.num_gpu_blocks == 65
    assert (facts.start.max_num_seqs, facts.start.max_num_batched_tokens) == (16, 512)


def test_a_study_is_not_resumed_on_another_vllm(make_engine):
    with make_engine(version="0.31.0") as first:
        first.start(cell(2, 256))
    with make_engine(version="0.32.0") as second, pytest.raises(UsageError, match=r"measured with vLLM 0\.31\.0"):
        second.measure(cell(2, 256))


def test_the_client_takes_latencies_down_when_asked(make_engine):
    with make_engine(client_latency=True) as engine:
        trial = engine.measure(cell(16, 512)).trial
    assert trial.client_ttft_s.p50 > 0
    assert trial.client_itl_s is not None
    assert trial.ttft_s.p50 <= trial.client_ttft_s.max


def test_where_one_process_does_not_follow_the_stream_there_are_several(make_engine, monkeypatch, tmp_path):
    asked, drive = [], loaded_server.drive_in_processes

    def spy(*words, num_processes, **options):
        asked.append(num_processes)
        return drive(*words, num_processes=num_processes, **options)

    monkeypatch.setattr(loaded_server, "drive_in_processes", spy)
    monkeypatch.setattr(processes, "TOKENS_PER_S", 100)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with make_engine(client_latency=True, step_s=0.01) as engine:
        trial = engine.measure(cell(16, 512)).trial
        short = engine.measure(cell(2, 256), lambda _: True)
        whole = engine.measure(cell(16, 512))
    assert asked[:3] == [1, 2, 2]  # nothing is known before the warm-up
    assert trial.client_ttft_s.p50 > 0
    assert short.trial is None
    assert len(whole.steps.requests["last_token_s"]) == 40
    assert starts(tmp_path) == ["start-1"]
