"""Logged steps show whether prompts stall the sequences that decode."""

import json
from pathlib import Path

import numpy as np
import pytest

from maitre.verify.modes.iteration_modes import modes_from_iterations

RECORDINGS = Path(__file__).parents[2] / "data/recordings"


def steps(share_with_prompts, tokens, num=1000, s_per_token=40e-6, seed=0):
    """A decode step takes 12 ms; prompt tokens come on top."""
    rng = np.random.default_rng(seed)
    context = np.where(rng.random(num) < share_with_prompts, tokens, 0)
    elapsed = (0.012 + s_per_token * context) * np.exp(0.03 * rng.standard_normal(num))
    return context, np.full(num, 32), elapsed


def test_long_prompts_stall_and_the_price_of_a_token_is_told():
    told = modes_from_iterations(*steps(0.2, 4096))
    assert told.modality.verdict == "two-modes"
    assert told.with_prompts_share == pytest.approx(0.2, abs=0.04)
    assert told.decode_only_s == pytest.approx(0.012, rel=0.02)
    assert told.with_prompts_s == pytest.approx(0.012 + 4096 * 40e-6, rel=0.02)
    assert told.s_per_context_token == pytest.approx(40e-6, rel=0.05)
    assert "1,000 prompt tokens in a step add about 40" in told.modality.reason


@pytest.mark.parametrize(
    ("share", "tokens"), [(0.2, 64), (0.02, 4096), (0.0, 0), (0.99, 4096)], ids=["short", "few", "none", "all"]
)
def test_short_few_no_or_only_prompts_are_one_pace(share, tokens):
    assert modes_from_iterations(*steps(share, tokens)).modality.verdict == "one-mode"


def test_a_time_that_is_written_a_line_late_or_early_is_put_back():
    context, decodes, elapsed = steps(0.2, 4096)
    for lag in (-1, 1):
        told = modes_from_iterations(context, decodes, np.roll(elapsed, lag))
        assert (told.lag, told.modality.verdict) == (lag, "two-modes")


def test_engines_that_share_a_log_are_taken_apart():
    one, other = steps(0.2, 4096, seed=1), steps(0.2, 4096, seed=2)
    mixed = [np.ravel(np.column_stack(pair)) for pair in zip(one, other, strict=True)]
    told = modes_from_iterations(*mixed, engine=np.tile(["0", "1"], 1000))
    assert told.s_per_context_token == pytest.approx(40e-6, rel=0.05)
    assert told.lag == 0


def test_a_short_log_is_cannot_tell():
    told = modes_from_iterations(*steps(0.2, 4096, num=150))
    assert (told.modality.verdict, told.num_steps) == ("cannot-tell", 150)


def test_an_empty_log_is_cannot_tell():
    assert modes_from_iterations([], [], []).modality.verdict == "cannot-tell"


def test_recorded_steps_of_a_gpu_give_one_price_in_every_cell(recording_columns):
    """Qwen2.5-14B on an H200, asynchronous scheduling: about 40 µs a prompt token whatever the setting."""
    for columns in recording_columns:
        told = modes_from_iterations(columns["prefill_tokens"], columns["num_decodes"], columns["elapsed_s"])
        assert told.s_per_context_token == pytest.approx(40e-6, rel=0.1)


@pytest.fixture
def recording_columns():
    path = RECORDINGS / "qwen2.5-14b-lognormal-kv4521.json"
    names = json.loads(path.read_text())["step_columns"]
    with np.load(path.with_suffix(".npz")) as cells:
        tables = [dict(zip(names, cells[cell].T.astype(float), strict=True)) for cell in cells.files]
    return [table | {"elapsed_s": np.diff(table["output_end_s"], prepend=0.0)} for table in tables]
