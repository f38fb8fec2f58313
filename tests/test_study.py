"""A study on disk: every finished trial is there at once, and the whole is written in one piece."""

import json
from datetime import UTC, datetime

import numpy as np
import pytest

from maitre.errors import InputError, SystemFailure, UsageError
from maitre.recording import RunRecord, StepRecord
from maitre.records import NOT_SURE_YET, Finding, Study, Trial, Workload
from maitre.search import recommend
from maitre.study import StudyDirectory, new_study_path

WORKLOAD = Workload(name="w", source="s", prompt_tokens=[3, 5], output_tokens=[2, 4])


@pytest.fixture
def study(make_trial):
    trials = [make_trial(64, 4096, 1000), make_trial(128, 4096, 1500)]
    answer = recommend(trials, trials[0].cell, np.zeros((10, 2)), epsilon=0.02, delta=0.05)
    server = {"model": "m", "max_model_len": 4096, "max_num_seqs": 64, "max_num_batched_tokens": 4096}
    return Study(
        maitre_version="0", engine="simulated", server=server, gpu="g", workload_name="w", workload_source="s",
        num_requests=2, total_tokens=14, calibration="c", cells=trials, recommended=answer.recommended,
        recommendation=answer, infeasible={"512x4096": "too large"},
    )  # fmt: skip


def test_a_finished_study_comes_back_as_it_was(tmp_path, study):
    directory = StudyDirectory.create(tmp_path / "deep" / "s", WORKLOAD)
    stored = directory.finish(study)
    assert stored.recommendation.study == str(tmp_path / "deep" / "s")
    assert directory.load() == stored
    assert Workload.model_validate_json((directory.path / "workload.json").read_text()).total_tokens == 14


def test_every_trial_is_on_disk_before_the_next_one(tmp_path, study):
    directory = StudyDirectory.create(tmp_path / "s", WORKLOAD)
    for number, trial in enumerate(study.cells, 1):
        directory.add_trial(trial)
        lines = (directory.path / "trials.jsonl").read_text().splitlines()
        assert [Trial.model_validate_json(line) for line in lines] == list(study.cells[:number])
    assert not (directory.path / "study.json").exists()


def test_the_study_replaces_its_draft_and_leaves_none(tmp_path, study):
    directory = StudyDirectory.create(tmp_path / "s", WORKLOAD)
    (directory.path / "study.json").write_text("half a stu")
    directory.finish(study)
    assert json.loads((directory.path / "study.json").read_text())["schema_version"] == "maitre-study-1"
    assert sorted(path.name for path in directory.path.iterdir()) == ["study.json", "workload.json"]


def test_a_directory_that_holds_something_is_refused_and_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(UsageError, match="exists already"):
            StudyDirectory.create(path, WORKLOAD)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_empty_directory_is_taken(tmp_path):
    assert (StudyDirectory.create(tmp_path, WORKLOAD).path / "workload.json").exists()


def test_an_error_before_the_first_trial_leaves_nothing_behind(tmp_path, study):
    with pytest.raises(UsageError), StudyDirectory.create(tmp_path / "deep" / "s", WORKLOAD):
        raise UsageError("no such cell")
    assert list(tmp_path.iterdir()) == []


def test_steps_come_back_with_their_trials_to_the_last_bit(tmp_path, study):
    ends = 3600.0 + np.cumsum([0.1, 1 / 3])
    columns = {"num_decodes": np.array([1.0, 2.0]), "prefill_attention_pairs": np.array([2.0**40 + 1, 0.0])}
    steps = StepRecord(columns | {"output_end_s": ends})
    run = RunRecord(steps.columns, {"arrival_s": np.array([-0.25, 1 / 3]), "num_preemptions": np.array([0.0, 1.0])})
    directory, _ = StudyDirectory.resume(tmp_path / "s", WORKLOAD, {})
    kept = [(study.cells[0], run), (study.cells[1], None), (study.cells[0], steps)]
    for trial, record in kept:
        directory.add_trial(trial, record)
    _, found = StudyDirectory.resume(tmp_path / "s", WORKLOAD, {})
    assert [trial for trial, _ in found] == [trial for trial, _ in kept]
    assert found[1][1] is None
    for (_, record), (_, back) in zip(kept[::2], found[::2], strict=True):
        assert type(back) is type(record)
        assert all(np.array_equal(back.columns[name], values) for name, values in record.columns.items())
    assert all(np.array_equal(found[0][1].requests[name], values) for name, values in run.requests.items())


def test_steps_of_a_trial_whose_line_was_torn_belong_to_no_other(tmp_path, study):
    directory, _ = StudyDirectory.resume(tmp_path / "s", WORKLOAD, {})
    directory.add_trial(study.cells[0], StepRecord({"output_end_s": np.array([1.0])}))
    lines = tmp_path / "s" / "trials.jsonl"
    lines.write_text(lines.read_text()[:-9])
    directory, found = StudyDirectory.resume(tmp_path / "s", WORKLOAD, {})
    assert found == []
    directory.add_trial(study.cells[1])
    assert StudyDirectory.resume(tmp_path / "s", WORKLOAD, {})[1] == [(study.cells[1], None)]


def test_broken_steps_are_named_with_what_to_do(tmp_path, study):
    directory, _ = StudyDirectory.resume(tmp_path / "s", WORKLOAD, {})
    directory.add_trial(study.cells[0], StepRecord({"output_end_s": np.array([1.0])}))
    path = tmp_path / "s" / "steps" / "0001.npz"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match=r"0001\.npz: not the steps") as caught:
        StudyDirectory.resume(tmp_path / "s", WORKLOAD, {})
    assert "remove" in caught.value.hint
    path.unlink()
    assert StudyDirectory.resume(tmp_path / "s", WORKLOAD, {})[1] == [(study.cells[0], None)]


def test_an_error_with_logs_to_read_leaves_a_study_that_can_be_resumed(tmp_path):
    directory, _ = StudyDirectory.resume(tmp_path / "s", WORKLOAD, {"a": 1})
    (directory.path / "logs").mkdir()
    with pytest.raises(SystemFailure), directory:
        raise SystemFailure("the server did not start")
    directory, found = StudyDirectory.resume(tmp_path / "s", WORKLOAD, {"a": 1})
    assert found == []
    assert (directory.path / "logs").is_dir()


def test_an_error_after_the_first_trial_leaves_the_trial(tmp_path, study):
    directory = StudyDirectory.create(tmp_path / "s", WORKLOAD)
    directory.add_trial(study.cells[0])
    with pytest.raises(KeyboardInterrupt), directory:
        raise KeyboardInterrupt
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["trials.jsonl", "workload.json"]


def test_a_place_that_cannot_be_written_is_a_failure_of_the_system(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(SystemFailure, match="cannot be written"):
        StudyDirectory.create(tmp_path / "file" / "s", WORKLOAD)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((None, "no such file"), ("", "empty"), ('{"schema_ver', "truncated"), ("[]", "not a study")),
        *(("{}", "maitre_version: Field required"), ('{"schema_version": "maitre-study-9"}', "schema_version")),
    ],
)
def test_what_is_no_study_is_refused_with_the_file(tmp_path, content, said):
    if content is not None:
        (tmp_path / "study.json").write_text(content)
    with pytest.raises(InputError) as caught:
        StudyDirectory(tmp_path).load()
    assert str(tmp_path / "study.json") in caught.value.args[0]
    assert said in caught.value.args[0]


@pytest.mark.parametrize(
    ("name", "folder"), [("chat", "chat"), ("fixed:512:256", "fixed-512-256"), ("../etc", "etc"), ("::", "workload")]
)
def test_a_study_is_named_by_its_workload_and_the_time(name, folder):
    path = new_study_path(name, datetime(2026, 5, 4, 9, 0, 7, tzinfo=UTC))
    assert str(path) == f"maitre-studies/{folder}-20260504-090007"


def test_a_study_whose_answer_was_not_sure_goes_on_and_a_sure_one_does_not(tmp_path, study):
    asked = {"command": "a"}
    directory, _ = StudyDirectory.resume(tmp_path / "s", WORKLOAD, asked)
    directory.add_trial(study.cells[0])
    directory.finish(study.model_copy(update={"findings": (Finding(code=NOT_SURE_YET, message="m"),)}))
    directory, found = StudyDirectory.resume(tmp_path / "s", WORKLOAD, asked)
    assert found == [(study.cells[0], None)]
    with pytest.raises(UsageError, match="another study"):
        StudyDirectory.resume(tmp_path / "s", WORKLOAD, {"command": "b"})
    directory.finish(study)
    with pytest.raises(UsageError, match="exists already"):
        StudyDirectory.resume(tmp_path / "s", WORKLOAD, asked)


def test_half_a_character_in_a_study_is_replaced_so_that_it_can_be_printed(tmp_path, study):
    directory = StudyDirectory.create(tmp_path / "s", WORKLOAD)
    directory.finish(study)
    path = directory.path / "study.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"gpu": "\ud800"}))
    assert '"gpu":"\ufffd"' in directory.load().model_dump_json()


@pytest.mark.parametrize("columns", [{"steps": [1.0]}, {"output_end_s": [[1.0]]}, {"output_end_s": ["x"]}, None])
def test_steps_that_are_none_of_a_trial_are_refused_with_their_file(tmp_path, study, columns):
    directory, _ = StudyDirectory.resume(tmp_path / "s", WORKLOAD, {})
    directory.add_trial(study.cells[0], StepRecord({"output_end_s": np.array([1.0])}))
    path = directory.path / "steps" / "0001.npz"
    if columns is None:
        path.write_bytes(path.read_bytes().replace(b"output_end_s.npy", b"output_end_s.csv"))
    else:
        np.savez(path, **columns)
    with pytest.raises(InputError, match=r"0001\.npz: not the steps of a trial") as caught:
        StudyDirectory.resume(tmp_path / "s", WORKLOAD, {})
    assert "remove the file" in caught.value.hint
