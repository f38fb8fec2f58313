"""Which calibration answers for a server: the measured one where it was measured, else the scaled roofline."""

import json
from pathlib import Path

import numpy as np
import pytest

from maitre.calibration import calibration_for, roofline_prior
from maitre.gpus import find_gpu, known_gpus
from maitre.kv_budget import kv_bytes_per_token
from maitre.models import known_models, load_model
from maitre.records import ServerConfig

EXAMPLE = Path(__file__).parents[2] / "examples" / "qwen2.5-14b" / "config.json"


def answer(model="qwen2.5-14b", gpu="h200", **server):
    model = load_model(str(model))
    config = ServerConfig(model=model.name, max_model_len=8192, max_num_seqs=256, max_num_batched_tokens=8192, **server)
    per_token = kv_bytes_per_token(model, config.kv_cache_dtype, config.tensor_parallel_size, config.dtype)
    return calibration_for(model, find_gpu(gpu), config, per_token)


def test_the_measured_model_on_the_measured_gpu_gets_the_measured_step_time():
    assert answer().kind == "measured"
    assert answer("Qwen/Qwen2.5-14B-Instruct").kind == "measured"


def test_a_fine_tune_with_the_same_geometry_counts_as_the_measured_model(tmp_path):
    config = json.loads(EXAMPLE.read_text())
    (tmp_path / "my-tune").mkdir()
    (tmp_path / "my-tune" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 131_072}))
    assert answer(tmp_path / "my-tune") == answer()


@pytest.mark.parametrize("field", ["num_hidden_layers", "intermediate_size", "vocab_size"])
def test_another_geometry_does_not_count(tmp_path, field):
    config = json.loads(EXAMPLE.read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: config[field] * 2}))
    assert answer(tmp_path / "config.json").kind == "scaled"


def test_every_other_model_is_scaled():
    for name in known_models():
        expected = "measured" if "Qwen2.5-14B" in name else "scaled"
        assert answer(name).kind == expected, name


def test_every_other_gpu_is_scaled():
    for gpu in known_gpus():
        assert answer(gpu=gpu.name).kind == ("measured" if gpu.name == "NVIDIA H200" else "scaled"), gpu.name


@pytest.mark.parametrize("server", [{"tensor_parallel_size": 2}, {"kv_cache_dtype": "fp8"}])
def test_other_flags_are_scaled(server):
    assert answer(**server).kind == "scaled"


def test_what_is_scaled_from_farther_away_is_trusted_less():
    measured, same_gpu, other_gpu = answer(), answer("qwen2.5-7b"), answer(gpu="a100-80gb")
    two_gpus = answer(gpu="a100-80gb", tensor_parallel_size=2)
    assert measured.time_sd < same_gpu.time_sd < other_gpu.time_sd < two_gpus.time_sd
    for scaled in (same_gpu, other_gpu, two_gpus):
        assert np.all(scaled.relative_sd > measured.relative_sd.min())
        assert scaled.summary.startswith("not measured on ")


def test_a_step_takes_longer_with_more_to_do_and_shorter_on_a_faster_gpu():
    slow, fast = answer("qwen2.5-7b", "a100-80gb").step_time, answer("qwen2.5-7b", "h200").step_time
    assert slow.decode_s(64, 64_000) > fast.decode_s(64, 64_000)
    assert fast.decode_s(64, 64_000) < fast.decode_s(128, 128_000) < fast.mixed_s(128, 128_000, 2048, 2048**2 // 2)


def test_half_the_weights_of_two_gpus_are_read_in_half_the_time():
    model, gpu = load_model("qwen2.5-72b"), find_gpu("h200")
    base = ServerConfig(model="m", max_model_len=8192, max_num_seqs=64, max_num_batched_tokens=8192)
    one, four = (
        roofline_prior(model, gpu, base.model_copy(update={"tensor_parallel_size": n}), 327_680 // n) for n in (1, 4)
    )
    assert four.step_time.b1 == pytest.approx(one.step_time.b1 / 4)
    assert one.step_time.a0 / 4 < four.step_time.a0 < one.step_time.a0
