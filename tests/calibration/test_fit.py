"""Fitting step times: known coefficients come back, and what the steps do not tell stays at the prior."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitre.calibration import fit_step_time, roofline_prior
from maitre.calibration.fit import WINDOW_STEPS, window_sums
from maitre.gpus import find_gpu
from maitre.models import load_model
from maitre.recording import RecordedCell, RecordedRun
from maitre.records import ServerConfig
from maitre.simulator.step_time import COEFFICIENTS
from maitre.vllm import capture_sizes

SERVER = ServerConfig(model="m", max_model_len=8192, max_num_seqs=512, max_num_batched_tokens=65536)
BARE_PRIOR = roofline_prior(load_model("qwen2.5-14b"), find_gpu("h200"), SERVER, 196_608)
PRIOR = BARE_PRIOR.model_copy(
    update={"step_time": BARE_PRIOR.step_time.model_copy(update={"graph_sizes": capture_sizes("0.26.0", SERVER.cell)})}
)
RECOVERED = 0.03
"""Relative error of a coefficient that noiseless steps tell apart from the others: the prior's pull is left."""


def steps(num_decodes, context, prefill_tokens, pairs, prefills):
    """Columns of a run; arguments broadcast to one value a step."""
    names = ("num_decodes", "decode_context_tokens", "prefill_tokens", "prefill_attention_pairs", "num_prefills")
    values = np.broadcast_arrays(num_decodes, context, prefill_tokens, pairs, prefills)
    return {name: np.array(value, dtype=float) for name, value in zip(names, values, strict=True)}


def timed(columns, step_time, noise=0.0, seed=0):
    seconds = step_time.steps_s(columns)
    seconds = seconds * np.exp(np.random.default_rng(seed).normal(0, noise, len(seconds)))
    cell = RecordedCell(
        max_num_seqs=512, max_num_batched_tokens=65536, steps="a", num_steps=len(seconds), num_preemptions=0,
        engine_s=float(seconds.sum()),
    )  # fmt: skip
    return RecordedRun(columns | {"output_end_s": np.cumsum(seconds)}, cell)


def rich_columns(seed=1):
    """2,048 steps in which everything varies on its own; a window is all decode or all mixed."""
    draw = np.random.default_rng(seed)
    n = 64
    windows = [np.repeat(draw.permutation(np.geomspace(*ends, n)).round(), WINDOW_STEPS) for ends in
               ((1, 500), (100, 6000), (1, 30_000), (50, 8000))]  # fmt: skip
    decodes, length, prompt, start = windows
    is_mixed = np.repeat(np.arange(n) % 2, WINDOW_STEPS)
    return steps(decodes, decodes * length, prompt * is_mixed, prompt * start * is_mixed, is_mixed)


RICH = rich_columns()


def scaled(factors):
    return PRIOR.step_time.with_coefficients(PRIOR.step_time.coefficients * np.array(factors))


@settings(max_examples=40)
@given(st.lists(st.floats(0.6, 1.7), min_size=7, max_size=7))
def test_known_coefficients_come_back(factors):
    truth = scaled(factors)
    fitted = fit_step_time([timed(RICH, truth)], PRIOR, "synthetic")
    assert fitted.step_time.coefficients == pytest.approx(truth.coefficients, rel=RECOVERED)
    assert fitted.kind == "fitted"
    assert fitted.step_time.graph_sizes == PRIOR.step_time.graph_sizes


def test_noise_on_steps_averages_out():
    truth = scaled([0.8, 1.4, 1.2, 0.7, 1.3, 0.8, 1.5])
    fitted = fit_step_time([timed(RICH, truth, noise=0.05)], PRIOR, "synthetic")
    off = fitted.step_time.coefficients / truth.coefficients - 1
    assert np.all(np.abs(off) < 5 * fitted.relative_sd + RECOVERED)
    predicted, recorded = fitted.step_time.steps_s(RICH).sum(), truth.steps_s(RICH).sum()
    assert predicted == pytest.approx(recorded, rel=0.005)


@settings(max_examples=30)
@given(st.lists(st.floats(0.0, 20.0), min_size=7, max_size=7), st.floats(0, 0.5), st.integers(0, 99))
def test_no_coefficient_is_negative_whatever_the_times(factors, noise, seed):
    seconds_of = scaled(np.array(factors) + 1e-3)
    fitted = fit_step_time([timed(RICH, seconds_of, noise, seed)], PRIOR, "synthetic")
    assert np.all(fitted.step_time.coefficients >= 0)
    assert np.isfinite(fitted.covariance).all()


def test_what_the_steps_say_nothing_about_keeps_its_prior():
    decodes = np.repeat([8, 32, 64, 128], 256)
    only_decodes = steps(decodes, decodes * 700, 0, 0, 0)
    truth = scaled([1.2, 1.2, 1.2, 5, 1, 5, 5])
    fitted = fit_step_time([timed(only_decodes, truth)], PRIOR, "synthetic")
    ratio = dict(zip(COEFFICIENTS, fitted.step_time.coefficients / PRIOR.step_time.coefficients, strict=True))
    assert [ratio[name] for name in ("a1", "b1", "c1", "d1")] == pytest.approx([1, 1, 1, 1])
    assert ratio["a0"] == pytest.approx(1.2, rel=0.1)
    spread = dict(zip(COEFFICIENTS, fitted.relative_sd, strict=True))
    assert spread["d1"] == pytest.approx(1.0)  # the prior's own
    assert spread["a0"] < 0.1


@settings(max_examples=20)
@given(st.lists(st.floats(0.3, 3.0), min_size=7, max_size=7), st.floats(0, 0.1))
def test_the_covariance_is_symmetric_and_positive(factors, noise):
    covariance = np.array(fit_step_time([timed(RICH, scaled(factors), noise)], PRIOR, "synthetic").covariance)
    assert covariance.shape == (7, 7)
    assert np.allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > 0


def test_more_steps_say_more():
    half = {name: column[::2] for name, column in RICH.items()}
    one, both = (fit_step_time([timed(c, PRIOR.step_time, 0.02)], PRIOR, "") for c in (half, RICH))
    assert np.all(both.relative_sd < one.relative_sd)


def test_windows_lose_no_step_and_no_second():
    for num_steps in (1, WINDOW_STEPS - 1, WINDOW_STEPS, 3 * WINDOW_STEPS + 5):
        columns = {name: column[:num_steps] for name, column in RICH.items()}
        run = timed(columns, PRIOR.step_time)
        features, seconds = window_sums([run, run], PRIOR.step_time)
        assert len(features) == len(seconds) == 2 * max(num_steps // WINDOW_STEPS, 1)
        assert seconds.sum() == pytest.approx(2 * run.step_end_s[-1])
        assert (features @ PRIOR.step_time.coefficients).sum() == pytest.approx(seconds.sum())
