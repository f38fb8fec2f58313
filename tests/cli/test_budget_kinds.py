"""`maitre budget` of models that keep windows, latents and states, and of what else takes memory."""

import json
from pathlib import Path

import pytest

CONFIGS = json.loads(Path("tests/data/cache_layouts_vllm_0.32.0.json").read_text())["configs"]


@pytest.fixture
def read(run):
    def answer(*arguments):
        code, out, err = run("budget", *arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return answer


@pytest.fixture
def config(tmp_path):
    def path(name):
        (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
        return tmp_path / "config.json"

    return path


def flags_of(given):
    yield from ("--kv-cache-dtype", {1: "fp8", 2: "auto"}[given["kv_dtype_bytes"]])
    yield from ("--tensor-parallel-size", given["tensor_parallel_size"])
    if "in_flight_tokens" in given:
        yield from ("--in-flight-tokens", given["in_flight_tokens"])
    if not given.get("hybrid_kv_cache_manager", True):
        yield "--disable-hybrid-kv-cache-manager"


def within(expected, got):
    if not isinstance(expected, dict):
        return got == expected
    if "any_of" in expected:
        return got in expected["any_of"]
    return expected["min"] <= got <= expected["max"]


def test_the_public_cases_from_the_command_line(read, shared_path):
    listed = json.loads((shared_path / "cases" / "cases.json").read_text())
    cases = [case for case in listed if case["kind"] == "model-config"]
    assert len(cases) >= 6
    for case in cases:
        found = read("--model", shared_path / "cases" / case["files"][0], *flags_of(case["given"]))
        for key, expected in case["expect"].items():
            assert within(expected, found[key]), (case["id"], key, found[key])


def test_both_prices_of_a_window_are_shown(run, config):
    code, out, _ = run("budget", "--model", config("gpt-oss-120b"))
    assert code == 0
    assert "36,864 B of KV cache a token" in out
    assert "73,728 B a token with --disable-hybrid-kv-cache-manager" in out


def test_sequences_of_a_known_pool(read, config):
    lengths = ("--blocks", 20_000, "--prompt-tokens", 2000, "--output-tokens", 500)
    windows = read("--model", config("gpt-oss-120b"), *lengths)
    full = read("--model", config("gpt-oss-120b"), *lengths, "--disable-hybrid-kv-cache-manager")
    assert (windows["kind"], windows["fixed_bytes_per_seq"] > 0, full["fixed_bytes_per_seq"]) == ("sliding", True, 0)
    assert windows["max_seqs_full_length"] == 19_999 // (-(-2499 // 16) + 157 - (2499 - 128) // 16)
    assert full["max_seqs_full_length"] == 19_999 // -(-2499 // 16)  # as many blocks, of twice the bytes
    hybrid = read("--model", config("qwen3-next-80b"), *lengths)
    assert (hybrid["kind"], hybrid["block_size"]) == ("hybrid", 544)
    assert hybrid["max_seqs_full_length"] == 19_999 // (-(-2499 // 544) + 3)


def test_a_latent_of_a_known_pool(read, config):
    assert read("--model", config("deepseek-v2-lite"), "--blocks", 1000)["kind"] == "mla"


def test_lora_and_a_draft_model_take_their_share(read):
    fits = ("--model", "Qwen2.5-7B", "--gpu", "H200")
    plain = read(*fits)
    lora = read(*fits, "--max-loras", 4, "--max-lora-rank", 64)
    drafted = read(*fits, "--draft-model", "Qwen2.5-0.5B", "--num-speculative-tokens", 4)
    assert lora["num_gpu_blocks"] < plain["num_gpu_blocks"]
    assert "LoRA slots" in {part["name"] for part in lora["parts"]}
    assert drafted["kv_bytes_per_token"] > plain["kv_bytes_per_token"]
    assert drafted["kind"] == "full"


@pytest.mark.parametrize(
    "flags",
    [
        ("--num-speculative-tokens", 4),
        ("--speculative-method", "ngram"),
        ("--speculative-method", "draft", "--num-speculative-tokens", 4),
        ("--speculative-method", "mtp", "--draft-model", "Qwen2.5-0.5B", "--num-speculative-tokens", 4),
    ],
)
def test_half_a_speculation_is_refused(run, flags):
    code, out, err = run("budget", "--model", "Qwen2.5-7B", *flags)
    assert (code, out) == (2, "")
    assert "needs its method and its number of tokens" in err


@pytest.mark.parametrize("name", ["gpt-oss-120b", "gemma-2-9b", "deepseek-v2-lite", "nemotron-h-8b"])
def test_the_simulator_refuses_what_its_pool_cannot_replay(run, config, name):
    code, out, err = run("simulate", "fixed:64:64", "--model", config(name), "--gpu", "H200")
    assert (code, out) == (2, "")
    assert "the simulator's pool has blocks of one kind" in err
    assert "maitre budget" in err
