"""`maitre tune --engine attach:URL`: what has to be said, what the server says itself, and the study of it."""

import importlib.util
from pathlib import Path

import pytest

from maitre.cli import tune_attach
from maitre.cli.grid_options import GridOptions
from maitre.cli.search_options import SearchOptions
from maitre.cli.server_options import ServerOptions
from maitre.cli.workload_options import WorkloadOptions
from maitre.errors import InputError, SystemFailure, UsageError
from maitre.records import Cell
from maitre.study import StudyDirectory

CELL = Cell(max_num_seqs=4, max_num_batched_tokens=64)
PRESENT = GridOptions(present="4x64")


@pytest.fixture(scope="module")
def serving():
    """`with serving(…) as server:` runs a server of known behaviour (trial/attached_server.py)."""
    path = Path(__file__).parents[1] / "trial" / "attached_server.py"
    spec = importlib.util.spec_from_file_location("attached_server", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.serving


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def measure(tmp_path):
    def measure(url, grid=PRESENT, spec="fixed:12:5", study="s", dials=None, **more):
        workload = WorkloadOptions(workload=spec, num_requests=20)
        path = None if study is None else tmp_path / study
        server = ServerOptions(model=more.pop("model", None))
        more = {"open_loop": False} | more
        return tune_attach.measure(workload, server, grid, SearchOptions(), url, dials, path, **more)

    return measure


def test_the_study_has_the_one_cell_and_what_the_server_said(serving, measure, tmp_path):
    with serving() as server:
        study = measure(server.url)
    (trial,) = study.cells
    assert (trial.cell, trial.engine, study.engine, study.recommended) == (CELL, "attach", "attach", CELL)
    assert (study.server.vllm_version, study.server.max_model_len, study.server.block_size) == ("0.32.0", 2048, 16)
    assert study.server.model == "tiny"
    assert not study.recommendation.worth_changing
    assert StudyDirectory(tmp_path / "s").load().cells == study.cells


def test_a_server_in_development_mode_needs_no_present_setting(serving, measure):
    with serving(dev_config={"max_num_seqs": 8, "max_num_batched_tokens": 128}) as server:
        study = measure(server.url, GridOptions())
    assert str(study.recommended) == "8x128"


@pytest.mark.parametrize(
    ("grid", "match"),
    [(GridOptions(), "does not say which limits"), (GridOptions(present="4x64", max_num_seqs="4,8"), "the one cell")],
)
def test_the_cell_must_be_known_and_the_only_one(serving, measure, grid, match):
    with serving() as server, pytest.raises(UsageError, match=match) as caught:
        measure(server.url, grid)
    assert caught.value.hint


def test_the_key_comes_from_the_flag_or_the_environment(serving, measure, monkeypatch):
    with serving() as server:
        for name, value in (("OPENAI_API_KEY", "third"), ("VLLM_API_KEY", "second")):
            monkeypatch.setenv(name, value)
            measure(server.url, study=name)
            assert server.headers[0]["Authorization"] == f"Bearer {value}"
        measure(server.url, study="flag", api_key="first")
        assert server.headers[0]["Authorization"] == "Bearer first"


def test_token_ids_stay_in_the_vocabulary_of_a_model_that_is_named(serving, measure, tmp_path):
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 64}}')
    with serving() as server:
        measure(server.url, model=str(tmp_path))
    assert max(max(body["prompt"]) for body in server.bodies.values()) < 64


def test_requests_longer_than_the_server_takes_are_refused_before_they_are_sent(serving, measure):
    with serving() as server, pytest.raises(InputError, match="longer than max_model_len"):
        measure(server.url, spec="fixed:2000:100")
    assert server.bodies == {}


def test_a_finished_study_of_the_same_question_is_not_measured_again(serving, measure, tmp_path):
    with serving() as server:
        measure(server.url)
        (tmp_path / "s" / "study.json").unlink()  # as if it had been killed before the end
        num_finished = server.num_finished
        again = measure(server.url)
        assert server.num_finished == num_finished
    assert len(again.cells) == 1


@pytest.mark.parametrize(
    ("url", "error"), [("http://127.0.0.1:1", SystemFailure), ("ftp://there", UsageError), ("", UsageError)]
)
def test_a_wrong_address_is_a_typed_error(measure, url, error):
    with pytest.raises(error) as caught:
        measure(url)
    assert caught.value.hint


def test_a_directory_without_dials_is_refused(serving, measure, tmp_path):
    with serving() as server, pytest.raises(UsageError, match="no server with maitre's scheduler"):
        measure(server.url, dials=tmp_path)
