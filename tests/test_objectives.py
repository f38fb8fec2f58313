"""The objectives of traffic over time, in the simulator: from requests to a recommendation."""

import numpy as np
import pytest

from maitre.errors import UsageError
from maitre.gpus import find_gpu
from maitre.models import load_model
from maitre.objectives import tune_latency, tune_rate
from maitre.records import Cell, ServerConfig, Study
from maitre.setup import Setup
from maitre.slo import parse_latency_targets
from maitre.workload import load_workload

MODEL = load_model("qwen2.5-14b")
PRESENT = Cell(max_num_seqs=64, max_num_batched_tokens=4096)
SMOOTH = Cell(max_num_seqs=64, max_num_batched_tokens=512)
FEW = Cell(max_num_seqs=4, max_num_batched_tokens=512)
SERVER = ServerConfig(model=MODEL.name, max_model_len=8192, **PRESENT.model_dump())
SETUP = Setup(SERVER, MODEL, find_gpu("H200"), num_gpu_blocks=20_000)
WORKLOAD = load_workload("lognormal:700:0.5:60:0.5", num_requests=120)
TIMED = WORKLOAD.model_copy(update={"arrival_s": np.linspace(0, 20, 120)})


def rate(*targets, workload=WORKLOAD, cells=(SMOOTH, FEW), **options):
    return tune_rate(workload, SETUP, cells, parse_latency_targets(targets), **options)


@pytest.fixture(scope="module")
def smooth_stream():
    """Half of all prompts in one step hold up the streams for longer than 40 ms; 512 tokens do not."""
    return rate("itl_p99=40ms", "ttft_p95=1s")


def test_a_smaller_budget_holds_the_stream_at_a_higher_rate(smooth_stream):
    answer = smooth_stream.recommendation
    assert answer.recommended == SMOOTH
    assert answer.worth_changing
    assert answer.gain_low < answer.gain < answer.gain_high
    assert answer.gain_low > 0
    by_cell = {trial.cell: trial.highest_rate for trial in smooth_stream.cells}
    assert by_cell[PRESENT].bound_by == "itl_p99=40ms"
    assert by_cell[SMOOTH].rate_rps > 1.2 * by_cell[PRESENT].rate_rps
    assert by_cell[FEW].rate_rps < 0.5 * by_cell[SMOOTH].rate_rps


def test_the_figures_are_those_of_the_highest_rate(smooth_stream):
    for trial in smooth_stream.cells:
        assert trial.attainment.met
        assert trial.requests_per_s < trial.highest_rate.rate_rps * 1.01
    assert smooth_stream.objective.kind == "rate"
    assert smooth_stream.objective.targets == ("itl_p99=40ms", "ttft_p95=1s")
    assert smooth_stream.objective.own_rate_rps is None


def test_a_rate_study_can_be_stored_and_read(smooth_stream):
    assert Study.model_validate_json(smooth_stream.model_dump_json()) == smooth_stream


def test_the_same_seed_gives_the_same_study(smooth_stream):
    assert rate("itl_p99=40ms", "ttft_p95=1s") == smooth_stream


def test_every_cell_is_told_of():
    told = []
    rate("ttft_p95=1s", on_trial=told.append)
    assert {trial.cell for trial in told} == {PRESENT, SMOOTH, FEW}


def test_own_times_are_made_faster():
    study = rate("ttft_p95=1s", workload=TIMED, cells=(SMOOTH,))
    assert study.objective.own_rate_rps == pytest.approx(119 / 20)
    assert study.cells[0].highest_rate.rate_rps > 1.2 * study.objective.own_rate_rps


def test_targets_that_no_step_can_meet():
    study = rate("itl_p99=2ms", cells=(SMOOTH,))
    answer = study.recommendation
    assert (answer.recommended, answer.worth_changing, answer.probability_within_epsilon) == (PRESENT, False, None)
    assert {finding.code for finding in study.findings} == {"targets-out-of-reach"}


def test_the_least_latency_at_the_traffics_own_rate():
    study = tune_latency(TIMED, SETUP, [SMOOTH, FEW], parse_latency_targets(["ttft_p95=1s"]))
    ttft_s = {trial.cell: trial.ttft_s.p95 for trial in study.cells}
    assert ttft_s[FEW] > 2 * ttft_s[PRESENT]  # four slots are too few for six requests a second
    assert study.recommendation.recommended == PRESENT
    assert study.objective.latency == "ttft_p95"
    assert study.objective.own_rate_rps == pytest.approx(119 / 20)
    assert Study.model_validate_json(study.model_dump_json()) == study


def test_a_latency_without_a_target_is_p95_of_end_to_end():
    study = tune_latency(TIMED, SETUP, [SMOOTH], ())
    assert study.objective.latency == "e2e_p95"
    assert study.objective.value(study.cells[0]) == study.cells[0].e2e_s.p95


def test_the_own_rate_needs_arrival_times():
    with pytest.raises(UsageError, match="needs arrival times"):
        tune_latency(WORKLOAD, SETUP, [SMOOTH], ())


def test_single_tokens_have_no_inter_token_latency():
    single = TIMED.model_copy(update={"output_tokens": np.ones(120, dtype=np.int64)})
    with pytest.raises(UsageError, match="no request has a second token"):
        tune_latency(single, SETUP, [SMOOTH], parse_latency_targets(["itl_p99=50ms"]))
