"""`maitre tune`: the keys of its JSON, and a study on disk that says the same."""

import json
from pathlib import Path

import pytest

from maitre.records import Study
from maitre.study import StudyDirectory

SERVER = ("--model", "qwen2.5-14b", "--gpu", "h200", "--max-model-len", "8192")
GRID = ("--max-num-seqs", "8,32", "--max-num-batched-tokens", "512,2k", "--present", "8x512")
SMALL = ("fixed:64:16", "--num-requests", "200", *SERVER, *GRID)
RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "recordings"
CLIFF = f"recorded:{RECORDINGS / 'qwen2.5-14b-fixed-512-256-kv4521.json'}"

KEYS = {
    *("recommended", "baseline", "gain", "gain_low", "gain_high", "num_measured", "measured_s", "epsilon", "delta"),
    *("probability_within_epsilon", "study", "worth_changing", "plateau", "reason"),
}
CELL = {"max_num_seqs", "max_num_batched_tokens"}


def tune(run, *arguments):
    code, out, err = run("tune", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_json_is_the_stored_recommendation(run, tmp_path):
    answer = tune(run, *SMALL, "--study", tmp_path / "s")
    assert answer.keys() == KEYS
    assert answer["recommended"].keys() == answer["baseline"].keys() == CELL
    assert (answer["epsilon"], answer["delta"], answer["num_measured"]) == (0.02, 0.05, 0)
    assert answer["gain_low"] <= answer["gain"] <= answer["gain_high"]
    stored = StudyDirectory(Path(answer["study"])).load()
    assert json.loads(stored.recommendation.model_dump_json()) == answer


def test_the_study_holds_the_workload_every_trial_and_the_whole(run, tmp_path):
    tune(run, *SMALL, "--study", tmp_path / "s")
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["study.json", "trials.jsonl", "workload.json"]
    trials = (tmp_path / "s" / "trials.jsonl").read_text().splitlines()
    study = Study.model_validate_json((tmp_path / "s" / "study.json").read_text())
    assert len(trials) == len(study.cells) == 4
    assert json.loads((tmp_path / "s" / "workload.json").read_text())["name"] == "fixed:64:16"


def test_a_stored_workload_can_be_tuned_again(run, tmp_path):
    first = tune(run, *SMALL, "--study", tmp_path / "s")
    again = tune(run, tmp_path / "s" / "workload.json", *SERVER, *GRID, "--study", tmp_path / "t")
    assert {**first, "study": None} == {**again, "study": None}


def test_people_get_the_surface_and_where_the_study_is(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("tune", *SMALL)
    assert (code, err) == (0, "")
    assert "★" in out
    last = out.splitlines()[-1]
    assert last.startswith("study saved in maitre-studies/fixed-64-16-")
    assert StudyDirectory(Path(last.removeprefix("study saved in "))).load().num_requests == 200


def test_two_studies_of_one_second_are_two_directories(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    studies = {tune(run, "--engine", CLIFF, "--max-num-seqs", "96")["study"] for _ in range(3)}
    assert len(studies) == 3
    assert all((tmp_path / study / "study.json").exists() for study in studies)


def test_simulate_and_tune_say_the_same(run, tmp_path):
    code, out, _ = run("simulate", *SMALL, "--json")
    assert code == 0
    assert json.loads(out)["recommended"] == tune(run, *SMALL, "--study", tmp_path / "s")["recommended"]


def test_a_recording_answers_with_its_own_server_and_workload(run, tmp_path):
    answer = tune(run, "--engine", CLIFF, "--study", tmp_path / "s")
    assert answer["recommended"]["max_num_seqs"] == 96
    assert answer["baseline"] == {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
    assert 0.09 < answer["gain_low"] < answer["gain"] < answer["gain_high"] < 0.15
    assert answer["worth_changing"]
    assert 2 <= answer["num_measured"] <= 6
    assert answer["probability_within_epsilon"] >= 0.95


def test_the_whole_grid_is_measured_if_that_is_asked_for(run, tmp_path):
    answer = tune(run, "--engine", CLIFF, "--search", "grid", "--study", tmp_path / "s")
    assert answer["recommended"] == {"max_num_seqs": 96, "max_num_batched_tokens": 32768}
    assert answer["num_measured"] == 12
    assert answer["measured_s"] == pytest.approx(195, abs=10)


def test_a_search_that_is_ended_says_what_it_does_not_know(run, tmp_path):
    code, out, _ = run("tune", "--engine", CLIFF, "--max-trials", "1", "--study", tmp_path / "s")
    assert code == 0
    assert "note: after 1 runs 256x8192 is within 2% of the best with probability" in " ".join(out.split())


def test_part_of_a_recording_and_another_present_cell(run, tmp_path):
    grid = ("--max-num-seqs", "64,128", "--max-num-batched-tokens", "2048", "--present", "128x2048")
    answer = tune(run, "--engine", CLIFF, *grid, "--study", tmp_path / "s")
    assert answer["num_measured"] == 2
    assert answer["recommended"] == answer["baseline"] == {"max_num_seqs": 128, "max_num_batched_tokens": 2048}


def test_epsilon_widens_the_plateau(run, tmp_path):
    narrow, wide = (
        tune(run, "--engine", CLIFF, "--epsilon", epsilon, "--study", tmp_path / epsilon)
        for epsilon in ("0.001", "0.2")
    )
    assert len(narrow["plateau"]) < len(wide["plateau"])
    assert wide["epsilon"] == 0.2


def test_a_recording_where_nothing_is_gained_says_keep(run, tmp_path):
    engine = f"recorded:{RECORDINGS / 'qwen2.5-14b-fixed-512-256.json'}"
    code, out, _ = run("tune", "--engine", engine, "--study", tmp_path / "s")
    assert code == 0
    assert "Keep 512x8192" in out
    assert "vllm serve" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fixed:8:8", "--engine", "live"], "no command that starts a server"),
        (["fixed:8:8", "--engine", "live", "--", "vllm", "serve", "m"], "the present setting is not known"),
        (["fixed:8:8", "--engine", "live", "--present", "8x64", "--", "echo", "hello"], "has no `serve`"),
        (["fixed:8:8", "--engine", "live", "--grid", "auto", "--present", "8x64", "--", "vllm", "serve", "m"], "auto"),
        (["fixed:8:8", "--model", "m", "--", "vllm", "serve", "m"], "--engine live"),
        (["fixed:8:8", "--engine", "live", "--open-loop", "--present", "8x64", "--", "vllm", "serve", "m"], "arrival"),
    ],
)
def test_a_real_server_is_asked_for_properly_or_not_at_all(run, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("tune", *words)
    assert code == 2
    assert not out
    assert message in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_what_a_recording_has_itself_is_not_taken_from_the_command_line(run, tmp_path):
    plain = json.loads(run("tune", "--engine", CLIFF, "--study", str(tmp_path / "a"), "--json")[1])
    options = ("fixed:64:64", "--model", "qwen2.5-7b", "--gpu", "L4")
    code, out, err = run("tune", *options, "--engine", CLIFF, "--study", str(tmp_path / "b"), "--json")
    assert code == 0
    assert "a recording has its own workload, model and GPU" in err
    assert json.loads(out) | {"study": ""} == plain | {"study": ""}
