"""The highest rate on a server whose true step time the search does not know."""

from dataclasses import replace

import numpy as np
import pytest

from maitre.calibration import shipped_calibrations
from maitre.errors import SystemFailure
from maitre.measured_rates import tune_measured_rate
from maitre.measuring import RunLimits
from maitre.recording import StepRecord
from maitre.records import Cell, FailedTrial, ServerConfig, Study
from maitre.simulator.replay import replay_arrivals, replay_at_once
from maitre.simulator.surface import ReplayedSurface
from maitre.slo import parse_latency_targets
from maitre.trial.engine import Measurement, TrialFailure
from maitre.trial.metrics import summarize
from maitre.trial.paced import PacedSurface
from maitre.trial.rate_surface import RateSurface
from maitre.trial.run import replay_run
from maitre.tune import Goal
from maitre.workload import load_workload

PRIOR = shipped_calibrations()[0]
VAGUE = PRIOR.model_copy(update={"covariance": tuple(map(tuple, (np.eye(7) * 0.1 + 0.3).tolist()))})
PRESENT = Cell(max_num_seqs=64, max_num_batched_tokens=4096)
SMOOTH = Cell(max_num_seqs=64, max_num_batched_tokens=512)
FEW = Cell(max_num_seqs=4, max_num_batched_tokens=512)
SERVER = ServerConfig(model="m", max_model_len=8192, **PRESENT.model_dump())
WORKLOAD = load_workload("lognormal:700:0.5:60:0.5", num_requests=100)
TARGETS = parse_latency_targets(["itl_p99=60ms", "ttft_p95=1s"])
POOL = 20_000


class Server:
    """Computes what vLLM would, with steps 30 % longer than the calibration says, and each cell's own beside that."""

    def __init__(self, factor=1.3, own=None, broken=(), late_s=0.0):
        self.theta = PRIOR.step_time.coefficients * factor
        self.own, self.broken, self.late_s = own or {}, broken, late_s
        self.asked = []

    def measure(self, cell, workload):
        self.asked.append((cell, workload.arrival_s))
        if cell in self.broken:
            words = {"engine": "live", "code": "out-of-memory", "message": "no room", "remedy": "less"}
            raise TrialFailure(FailedTrial(**cell.model_dump(), **words))
        schedules = ReplayedSurface(workload, SERVER, PRIOR.step_time, lambda _: POOL)
        rules = schedules.rules(cell)
        step_time = schedules.step_time(cell).with_coefficients(self.theta * self.own.get(cell, 1.0))
        is_paced = workload.arrival_s is not None
        replay = replay_arrivals(workload, rules, step_time) if is_paced else replay_at_once(workload, rules)
        busy_s = replay.steps_s(step_time)
        ends = replay.step_end_s if is_paced else np.cumsum(busy_s)
        columns = {name: values.astype(float) for name, values in replay.columns.items()}
        steps = StepRecord(columns | {"output_end_s": ends, "schedule_start_s": ends - busy_s})
        run = replay_run(replay, ends, workload, rules)
        run = replace(run, first_token_s=run.first_token_s + self.late_s * is_paced)
        return Measurement(summarize(run, workload, engine="live", targets=TARGETS if is_paced else ()), steps)


def tune(server, cells=(SMOOTH, FEW), prior=VAGUE, targets=TARGETS, **options):
    schedules = ReplayedSurface(WORKLOAD, SERVER, prior.step_time, lambda _: POOL)
    paced = PacedSurface(WORKLOAD, SERVER, prior.step_time, lambda _: POOL)
    goal = Goal(epsilon=0.05)
    return tune_measured_rate(
        server.measure, schedules, paced, prior, SERVER, cells, targets, goal, engine="live", **options
    )


def true_rate(server, cell):
    paced = PacedSurface(WORKLOAD, SERVER, PRIOR.step_time, lambda _: POOL)
    return RateSurface(paced, TARGETS).find(cell, server.theta * server.own.get(cell, 1.0)).crossing_rps


@pytest.fixture(scope="module")
def tuned():
    server = Server()
    told = []
    study = tune(server, on_run=lambda trial, steps: told.append((trial, steps)))
    return server, study, told


def test_the_true_highest_rate_is_found_and_confirmed(tuned):
    server, study, _ = tuned
    answer = study.recommendation
    assert answer.recommended == SMOOTH
    assert answer.worth_changing
    by_cell = {trial.cell: trial for trial in study.cells}
    highest = by_cell[SMOOTH].highest_rate
    assert highest.rate_rps == pytest.approx(true_rate(server, SMOOTH), rel=0.04)
    assert highest.confirmed_rps == pytest.approx(highest.rate_rps, rel=0.05)
    assert by_cell[SMOOTH].engine == "live"
    assert by_cell[SMOOTH].attainment.met
    assert answer.gain_low < true_rate(server, SMOOTH) / true_rate(server, PRESENT) - 1 < answer.gain_high


def test_the_first_run_is_short_and_the_others_are_made_near_the_foretold_rates(tuned):
    server, study, _ = tuned
    first, *others = server.asked
    assert (first[0], first[1]) == (PRESENT, None)
    assert len(others) <= 5
    for cell, arrival_s in others:
        rate_rps = 1 / np.diff(arrival_s).mean()
        assert rate_rps == pytest.approx(true_rate(server, cell), rel=0.15)
    assert [decision.rate_rps is None for decision in study.decisions] == [True] + [False] * len(others)


def test_a_hopeless_cell_is_not_run(tuned):
    server, study, _ = tuned
    assert FEW not in [cell for cell, _ in server.asked]
    assert next(trial for trial in study.cells if trial.cell == FEW).engine == "simulated"


def test_the_study_can_be_stored_and_read(tuned):
    _, study, told = tuned
    assert Study.model_validate_json(study.model_dump_json()) == study
    assert study.recommendation.num_measured == len(told) == len(study.decisions)


def test_an_interrupted_study_goes_on(tuned):
    _, whole, told = tuned
    again = Server()
    study = tune(again, finished=told[:2])
    assert len(again.asked) == len(told) - 2
    assert study.recommended == whole.recommended


def test_a_server_that_is_later_than_its_steps_has_its_rate_lowered():
    server = Server(factor=1.0, late_s=0.75)  # first tokens are held up outside of the steps
    study = tune(server, cells=(SMOOTH,))
    chosen = next(trial for trial in study.cells if trial.cell == study.recommended)
    rates = [d.rate_rps for d in study.decisions if d.cell == study.recommended and d.rate_rps]
    confirmed_rps = chosen.highest_rate.confirmed_rps
    if confirmed_rps is None:
        assert "rate-not-confirmed" in {finding.code for finding in study.findings}
    assert rates == sorted(rates, reverse=True)
    assert len(rates) > 1


def test_a_cell_that_fails_is_left_out():
    study = tune(Server(broken=[SMOOTH]))
    assert study.recommended != SMOOTH
    assert [failed.cell for failed in study.failed] == [SMOOTH]
    assert SMOOTH not in [trial.cell for trial in study.cells]


def test_without_the_present_setting_there_is_nothing_to_compare_with():
    with pytest.raises(SystemFailure, match="the present cell 64x4096 failed"):
        tune(Server(broken=[PRESENT]))


def test_targets_that_seem_out_of_reach_are_tried_once_with_little_traffic():
    server = Server(factor=10.0)
    study = tune(server)
    assert [cell for cell, _ in server.asked] == [PRESENT, SMOOTH]  # the stream is too slow: the smallest budget
    assert "targets-out-of-reach" in {finding.code for finding in study.findings}


def test_a_limit_ends_the_search_and_says_so():
    study = tune(Server(), cells=(SMOOTH,), limits=RunLimits(max_trials=2))
    assert study.recommendation.num_measured == 2
    assert {"not-sure-yet", "rate-not-confirmed"} & {finding.code for finding in study.findings}


def test_a_short_run_above_the_capacity_proves_nothing():
    """Lenient targets are met by a hundred requests at any rate; the answer is the capacity all the same."""
    lenient = parse_latency_targets(["ttft_p95=10min"])
    server = Server()
    study = tune(server, cells=(), targets=lenient)
    highest = study.cells[0].highest_rate
    assert highest.bound_by == "capacity"
    assert highest.rate_rps <= highest.capacity_rps
