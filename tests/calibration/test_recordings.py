"""The targets of the method, on runs of a real vLLM: two calibrated cells tell the others, the roofline comes near."""

from pathlib import Path

import numpy as np
import pytest

from maitre.calibration import fit_step_time, shipped_calibrations
from maitre.recording import load_recording
from maitre.trial.replay_check import predict_s, recorded_prior

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
GRIDS = ("qwen2.5-14b-fixed-512-256", "qwen2.5-14b-fixed-512-256-kv4521", "qwen2.5-14b-lognormal-kv4521")
OTHER_MODELS = sorted(
    path.stem for size in ("7b", "32b") for path in RECORDINGS.glob(f"qwen2.5-{size}-lognormal*.json")
)


def load(name):
    recording, runs = load_recording(RECORDINGS / f"{name}.json")
    return recorded_prior(recording), runs


def errors(calibration, runs):
    """Relative error of each cell's time."""
    return np.array([abs(predict_s(calibration, run) / run.step_end_s[-1] - 1) for run in runs])


def corner(runs, *, most_slots, most_tokens):
    cells = [run.recorded.cell for run in runs]
    seqs = (max if most_slots else min)(cell.max_num_seqs for cell in cells)
    tokens = (max if most_tokens else min)(cell.max_num_batched_tokens for cell in cells)
    return next(run for run, c in zip(runs, cells, strict=True) if (c.max_num_seqs, c.max_num_batched_tokens) ==
                (seqs, tokens))  # fmt: skip


@pytest.mark.parametrize("most_tokens", [True, False], ids=["rising-diagonal", "falling-diagonal"])
@pytest.mark.parametrize("name", GRIDS)
def test_two_opposite_cells_predict_the_others(name, most_tokens):
    prior, runs = load(name)
    pair = [corner(runs, most_slots=slots, most_tokens=slots == most_tokens) for slots in (False, True)]
    off = errors(fit_step_time(pair, prior, "two cells"), [run for run in runs if run not in pair])
    assert len(off) == len(runs) - 2
    assert off.mean() <= 0.010
    assert off.max() <= 0.03


@pytest.mark.parametrize("name", GRIDS)
def test_the_shipped_calibration_predicts_the_cells_that_it_was_made_from(name):
    prior, runs = load(name)
    off = errors(with_shipped_coefficients(prior), runs)
    assert off.mean() <= 0.015
    assert off.max() <= 0.03


def test_the_shipped_calibration_predicts_a_run_that_it_has_not_seen():
    prior, runs = load("qwen2.5-14b-lognormal-512-slots")
    assert errors(with_shipped_coefficients(prior), runs).max() <= 0.02


@pytest.mark.parametrize("name", GRIDS)
def test_the_scaled_roofline_is_near_where_it_was_scaled(name):
    prior, runs = load(name)
    assert errors(prior, runs).max() <= 0.05


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_the_scaled_roofline_is_within_a_tenth_for_other_models(name):
    prior, runs = load(name)
    assert prior.kind == "scaled"
    assert errors(prior, runs).max() <= 0.10


def with_shipped_coefficients(prior):
    coefficients = shipped_calibrations()[0].step_time.coefficients
    return prior.model_copy(update={"step_time": prior.step_time.with_coefficients(coefficients)})
