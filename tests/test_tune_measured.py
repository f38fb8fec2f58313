"""Measuring what can still win, on a server that is a simulator whose step time nobody was told."""

import numpy as np
import pytest

from maitre.calibration import roofline_prior
from maitre.errors import SystemFailure
from maitre.gpus import find_gpu
from maitre.kv_budget import kv_bytes_per_token
from maitre.measuring import RunLimits
from maitre.models import load_model
from maitre.recording import StepRecord
from maitre.records import Cell, FailedTrial, ServerConfig, Workload
from maitre.search import product_grid
from maitre.simulator.surface import ReplayedSurface
from maitre.trial import Measurement, TrialFailure
from maitre.trial.simulated import simulated_trial
from maitre.tune import tune_measured

WORKLOAD = Workload(name="x", source="x", prompt_tokens=[300] * 300, output_tokens=[100] * 300)
CELLS = product_grid([8, 16, 32, 64, 128], [256, 1024, 4096])
PRESENT = Cell(max_num_seqs=16, max_num_batched_tokens=1024)
SERVER = ServerConfig(model="qwen2.5-7b", max_model_len=2048, **PRESENT.model_dump())
MODEL = load_model("qwen2.5-7b")
PRIOR = roofline_prior(MODEL, find_gpu("H200"), SERVER, kv_bytes_per_token(MODEL, "auto", 1, "auto"))


class HiddenServer:
    """Runs the schedule at a pace of its own: coefficients that are not the prior's, and noise from run to run."""

    name = "live"
    cells = None

    def __init__(self, *, factors=(1.3, 0.8, 1.2, 1.1, 0.8, 1.3, 1.0), crashing=(), num_gpu_blocks=4000, seed=0):
        self.measured = []
        step_time = PRIOR.step_time.with_coefficients(PRIOR.step_time.coefficients * np.array(factors))
        self.surface = ReplayedSurface(WORKLOAD, SERVER, step_time, lambda _: num_gpu_blocks)
        self._crashing = set(crashing)
        self._noise = np.random.default_rng(seed)

    def true_s(self, cell):
        return float(self.surface.replay(cell).steps_s(self.surface.step_time(cell)).sum())

    def measure(self, cell, watch=None):
        self.measured.append(cell)
        if cell in self._crashing:
            raise TrialFailure(FailedTrial(**cell.model_dump(), engine="live", code="crash", message="no", remedy="x"))
        replay, step_time = self.surface.replay(cell), self.surface.step_time(cell)
        ends = np.cumsum(replay.steps_s(step_time)) * np.exp(self._noise.normal(0, 0.003))
        steps = StepRecord(replay.columns | {"output_end_s": ends})
        for num_steps in range(20, len(ends), 20):
            if watch and watch(steps.first(num_steps)):
                return Measurement(None, steps.first(num_steps))
        trial = simulated_trial(self.surface, cell, step_time, duration_s=float(ends[-1]))
        return Measurement(trial.model_copy(update={"engine": "live"}), steps)


def tune(server, **changes):
    surface = ReplayedSurface(WORKLOAD, SERVER, PRIOR.step_time, lambda _: 4000)
    return tune_measured(server, surface, PRIOR, SERVER, CELLS, **changes)


def test_a_few_runs_find_a_cell_that_is_as_good_as_the_best():
    server = HiddenServer()
    study = tune(server)
    best_s = min(server.true_s(cell) for cell in CELLS)
    assert server.true_s(study.recommended) <= best_s / 0.98
    assert server.measured[0] == PRESENT
    assert study.recommended in server.measured
    assert len(server.measured) <= 6
    assert study.recommendation.worth_changing
    true_gain = server.true_s(PRESENT) / server.true_s(study.recommended) - 1
    assert study.recommendation.gain_low < true_gain < study.recommendation.gain_high


def test_cells_that_were_not_measured_are_predicted_and_say_so():
    server = HiddenServer()
    study = tune(server)
    assert {trial.cell for trial in study.cells} == set(CELLS)
    for trial in study.cells:
        assert trial.engine == ("live" if trial.cell in server.measured else "simulated")
        assert trial.duration_s == pytest.approx(server.true_s(trial.cell), rel=0.05)


def test_every_run_says_why_it_was_made_and_what_it_settled():
    server = HiddenServer()
    study = tune(server)
    assert [decision.cell for decision in study.decisions] == server.measured
    assert "present setting" in study.decisions[0].reason
    assert study.decisions[0].expected_s is None
    assert study.decisions[1].expected_s == pytest.approx(study.decisions[1].measured_s, rel=0.3)
    assert study.decisions[-1].probability >= 0.95
    assert study.recommendation.num_measured == len(study.decisions)
    assert study.recommendation.measured_s == pytest.approx(sum(d.measured_s for d in study.decisions))


def test_a_cell_that_crashes_is_neither_asked_again_nor_recommended():
    best = tune(HiddenServer()).recommended
    server = HiddenServer(crashing=[best])
    study = tune(server)
    assert server.measured.count(best) == 1
    assert [failed.cell for failed in study.failed] == [best]
    assert study.recommended != best
    assert best not in {trial.cell for trial in study.cells}
    assert any(decision.failed == "crash" for decision in study.decisions)


def test_without_the_present_cell_there_is_nothing_to_compare_with():
    with pytest.raises(SystemFailure, match="present cell 16x1024"):
        tune(HiddenServer(crashing=[PRESENT]))


def test_an_interrupted_study_goes_on_with_what_it_has():
    kept = []
    whole = tune(HiddenServer(), on_run=lambda trial, steps: kept.append((trial, steps)))
    server = HiddenServer(seed=1)
    study = tune(server, finished=kept[:2])
    assert not {trial.cell for trial, _ in kept[:2]} & set(server.measured)
    assert study.decisions[0].reason == "measured before the interruption"
    assert study.recommendation.num_measured == 2 + len(server.measured)
    assert server.true_s(study.recommended) == pytest.approx(server.true_s(whole.recommended), rel=0.02)


def test_a_limit_ends_the_search_and_the_answer_says_how_unsure_it_is():
    server = HiddenServer()
    study = tune(server, limits=RunLimits(max_trials=1))
    assert server.measured == [PRESENT]
    assert study.recommended == PRESENT
    assert [finding.code for finding in study.findings if finding.code == "not-sure-yet"]
    times = iter(range(0, 1000, 40))
    server = HiddenServer()
    tune(server, limits=RunLimits(max_time_s=100.0, clock=lambda: next(times)))
    assert len(server.measured) == 2


@pytest.mark.parametrize("num_gpu_blocks", [1200, 9000])
def test_a_pool_that_is_not_as_believed_is_learned_from_the_first_step(num_gpu_blocks):
    server = HiddenServer(num_gpu_blocks=num_gpu_blocks)
    study = tune(server)
    best_s = min(server.true_s(cell) for cell in CELLS)
    assert server.true_s(study.recommended) <= best_s / 0.98
    assert len(server.measured) <= 6
    for trial in study.cells:
        assert trial.num_gpu_blocks == num_gpu_blocks or trial.cell in server.measured[:1]
