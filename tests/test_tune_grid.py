"""Measuring every cell of a grid, without a server: trials, failures, and what was finished before."""

import pytest

from maitre.errors import SystemFailure
from maitre.records import Cell, FailedTrial, ServerConfig, Workload
from maitre.trial import Measurement, TrialFailure
from maitre.tune import tune_grid

WORKLOAD = Workload(name="x", source="x", prompt_tokens=[10] * 64, output_tokens=[5] * 64)
PRESENT = Cell(max_num_seqs=8, max_num_batched_tokens=512)
OTHERS = [Cell(max_num_seqs=s, max_num_batched_tokens=512) for s in (4, 16)]
SERVER = ServerConfig(model="m", max_model_len=2048, **PRESENT.model_dump())


class ScriptedEngine:
    """Answers with prepared trials, and fails at the cells it is told to."""

    name = "live"
    cells = None

    def __init__(self, make_trial, failing=()):
        self.asked = []
        self._make_trial = make_trial
        self._failing = set(failing)

    def measure(self, cell, watch=None):
        self.asked.append(cell)
        if cell in self._failing:
            failed = FailedTrial(**cell.model_dump(), engine="live", code="oom-sampler", message="no", remedy="less")
            raise TrialFailure(failed)
        return Measurement(
            self._make_trial(cell.max_num_seqs, cell.max_num_batched_tokens, speed=100.0 * cell.max_num_seqs), None
        )


@pytest.fixture
def make(make_trial):
    def make(seqs, tokens, speed):
        return make_trial(seqs, tokens, speed, engine="live")

    return make


def test_every_cell_is_measured_once_the_present_one_first(make):
    engine = ScriptedEngine(make)
    study = tune_grid(engine, WORKLOAD, SERVER, [*OTHERS, PRESENT], gpu="a GPU")
    assert engine.asked == [PRESENT, *OTHERS]
    assert study.recommended == OTHERS[1]
    assert study.recommendation.num_measured == 3


def test_a_cell_that_fails_is_left_out_and_named(make):
    told = []
    study = tune_grid(
        ScriptedEngine(make, [OTHERS[1]]), WORKLOAD, SERVER, OTHERS, gpu="a GPU", on_run=lambda *what: told.append(what)
    )
    assert [failed.cell for failed in study.failed] == [OTHERS[1]]
    assert {trial.cell for trial in study.cells} == {PRESENT, OTHERS[0]}
    assert any(finding.code == "failed-oom-sampler" and finding.remedy == "less" for finding in study.findings)
    assert len(told) == 3


def test_without_the_present_cell_there_is_nothing_to_compare_with(make):
    with pytest.raises(SystemFailure, match="present cell 8x512") as caught:
        tune_grid(ScriptedEngine(make, [PRESENT]), WORKLOAD, SERVER, OTHERS, gpu="a GPU")
    assert caught.value.hint == "less"


def test_finished_trials_are_not_measured_again(make):
    engine = ScriptedEngine(make)
    finished = [make(8, 512, 800.0), make(4, 512, 400.0)]
    study = tune_grid(engine, WORKLOAD, SERVER, OTHERS, gpu="a GPU", finished=finished)
    assert engine.asked == [OTHERS[1]]
    assert study.recommendation.num_measured == 3
