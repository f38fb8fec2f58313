"""What is known of a server's step time before its first run: much, something, or hardly anything."""

import numpy as np
import pytest

from maitre.calibration import served_prior, shipped_calibrations
from maitre.calibration.served import UNKNOWN_COMMON_SD, unknown_prior
from maitre.models import load_model
from maitre.records import ServerConfig

QWEN_14B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "torch_dtype": "bfloat16",
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "intermediate_size": 13824,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
H200 = "NVIDIA H200"


def make_server(**changes):
    facts = {"model": "served-name", "max_model_len": 4096, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
    return ServerConfig(**facts | changes)


def test_a_model_that_was_measured_on_this_gpu_has_its_calibration():
    prior = served_prior(QWEN_14B, H200, make_server())
    assert prior.kind == "measured"
    assert prior in shipped_calibrations()


@pytest.mark.parametrize(
    ("gpu", "changes"),
    [("NVIDIA H100 80GB HBM3", {}), (H200, {"kv_cache_dtype": "fp8"}), (H200, {"tensor_parallel_size": 2})],
)
def test_elsewhere_the_roofline_answers_for_it(gpu, changes):
    prior = served_prior(QWEN_14B, gpu, make_server(**changes))
    assert prior.kind == "scaled"
    assert prior.gpu == gpu
    assert prior.model == "served-name"
    assert (prior.step_time.coefficients > 0).all()


@pytest.mark.parametrize(
    ("config", "gpu"),
    [
        (QWEN_14B, "cpu"),
        (QWEN_14B, ""),
        (QWEN_14B, "NVIDIA GH999"),
        ({}, H200),
        ({"architectures": ["FairyTaleForCausalLM"]}, H200),
        ({**QWEN_14B, "num_hidden_layers": "many"}, H200),
    ],
)
def test_of_an_unknown_model_or_gpu_hardly_anything_is_known(config, gpu):
    prior = served_prior(config, gpu, make_server())
    assert prior.kind == "unknown"
    assert (prior.model, prior.gpu) == ("served-name", gpu)
    assert "not known" in prior.summary


def test_a_step_time_that_nothing_is_known_of_may_be_twenty_times_as_long_or_short():
    prior = unknown_prior(make_server(), "cpu")
    draws = np.log(prior.draw_coefficients(20_000, np.random.default_rng(0)) / prior.step_time.coefficients)
    together = draws.mean(axis=1)
    assert np.mean(np.abs(together) < np.log(20)) > 0.6  # within one standard deviation
    assert np.mean(np.abs(together) > np.log(200)) > 0.05  # and more than that is no wonder
    apart = draws - together[:, None]
    assert apart.std() > 1  # nor that one coefficient is far larger than the others
    assert prior.time_sd == UNKNOWN_COMMON_SD


def test_what_is_known_can_be_stored_and_has_a_proper_covariance():
    for prior in (served_prior(QWEN_14B, H200, make_server()), unknown_prior(make_server(), "cpu")):
        assert type(prior).model_validate_json(prior.model_dump_json()) == prior
        covariance = np.array(prior.covariance)
        assert covariance.shape == (7, 7)
        assert covariance == pytest.approx(covariance.T, abs=1e-12)
        assert np.linalg.eigvalsh(covariance).min() > 0


def test_the_config_above_is_that_of_the_measured_model():
    model = load_model("qwen2.5-14b")
    assert (model.hidden_size, model.num_hidden_layers) == (QWEN_14B["hidden_size"], QWEN_14B["num_hidden_layers"])
