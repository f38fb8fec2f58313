"""The simulated engine: the same question gives the same answer, and its doubt is the calibration's."""

import numpy as np
import pytest

from maitre.calibration import shipped_calibrations
from maitre.errors import DoesNotFitError
from maitre.records import Cell, ServerConfig, Workload
from maitre.trial import SimulatedEngine
from maitre.workload import load_workload

CALIBRATION = shipped_calibrations()[0]
SERVER = ServerConfig(model="m", max_model_len=8192, max_num_seqs=32, max_num_batched_tokens=2048)
CELLS = [Cell(max_num_seqs=s, max_num_batched_tokens=t) for s, t in ((8, 512), (32, 2048), (64, 512))]
WORKLOAD = load_workload("lognormal:100:0.5:40:0.5", num_requests=120)


def engine(calibration=CALIBRATION, workload=WORKLOAD, blocks=4000, **options):
    return SimulatedEngine(workload, SERVER, calibration, lambda _: blocks, **options)


def test_the_same_cell_twice_is_the_same_trial():
    simulated = engine()
    assert simulated.run(CELLS[0]) == simulated.run(CELLS[0]) == engine().run(CELLS[0])


def test_a_trial_carries_the_dials_that_were_asked_for():
    trials = [engine().run(cell) for cell in CELLS]
    assert [trial.cell for trial in trials] == CELLS
    assert {trial.engine for trial in trials} == {"simulated"}
    assert trials[0].total_tokens_per_s < trials[1].total_tokens_per_s  # eight slots are too few


def test_draws_have_a_row_a_draw_and_a_column_a_cell():
    draws = engine().log_time_draws(CELLS, 3000, np.random.default_rng(0))
    assert draws.shape == (3000, 3)
    assert abs(draws.mean()) < 0.01
    assert draws.std(axis=0) == pytest.approx([CALIBRATION.cell_sd] * 3, rel=0.5)


def test_without_uncertainty_there_is_no_spread():
    sure = CALIBRATION.model_copy(update={"covariance": ((0.0,) * 7,) * 7, "cell_sd": 0.0})
    draws = engine(sure).log_time_draws(CELLS, 50, np.random.default_rng(0))
    assert draws == pytest.approx(np.zeros((50, 3)), abs=1e-12)


def test_neighbours_are_off_together_and_distant_cells_apart():
    vague = CALIBRATION.model_copy(update={"covariance": ((0.0,) * 7,) * 7, "cell_sd": 0.1})
    cells = [Cell(max_num_seqs=s, max_num_batched_tokens=t) for s, t in ((8, 512), (10, 512), (512, 65536))]
    draws = engine(vague).log_time_draws(cells, 4000, np.random.default_rng(0))
    correlation = np.corrcoef(draws.T)
    assert correlation[0, 1] > 0.95
    assert abs(correlation[0, 2]) < 0.1


def test_arrivals_count_only_when_asked_for():
    timed = Workload(
        name="w", source="s", prompt_tokens=[50] * 10, output_tokens=[10] * 10, arrival_s=np.arange(10) * 3.0
    )
    at_once, over_time = engine(workload=timed).run(CELLS[1]), engine(workload=timed, open_loop=True).run(CELLS[1])
    assert at_once.duration_s < 1
    assert over_time.duration_s > 27
    assert over_time.ttft_s.max < 0.1


def test_requests_that_the_pool_cannot_hold_are_refused():
    with pytest.raises(DoesNotFitError, match="larger than the KV pool of 32 tokens"):
        engine(blocks=3).run(CELLS[0])
