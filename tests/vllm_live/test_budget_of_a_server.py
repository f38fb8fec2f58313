"""The log and the metrics of a real vLLM on a CPU: both say the same pool, and the flags it was started with.

MAITRE_VLLM names its `vllm` program, for example /opt/vllm-cpu/bin/vllm; the model is a tiny one of random weights.
"""

import json
import socket

import pytest

from maitre.cli import main
from maitre.trial.command import ServeCommand
from maitre.trial.registry import ServerRegistry
from maitre.trial.server import ServerError, start_server

pytestmark = pytest.mark.vllm

READY_TIMEOUT_S = 300
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "bos_token_id": 2047, "eos_token_id": 2047,
}  # fmt: skip
"""4 layers × 2 (keys and values) × 2 heads × 64 × 2 B = 2,048 B of KV cache a token: 1 GiB holds 524,288 tokens."""


@pytest.fixture
def start(vllm, tmp_path):
    """Start it with these flags."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [str(vllm), "serve", str(tmp_path), "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager"]
    words += ["--port", str(port), "--max-model-len", "2048", "--max-num-seqs", "16", "--max-num-batched-tokens", "512"]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1", "HF_HUB_OFFLINE": "1"}
    command = ServeCommand.parse(words).with_environment(variables)
    registry = ServerRegistry(tmp_path / "study", tmp_path / "state")

    def start(flags):
        log_path = tmp_path / "server.log"
        return start_server(
            command.with_flags(flags), log_path=log_path, ready_timeout_s=READY_TIMEOUT_S, registry=registry
        )

    return start


@pytest.fixture
def read(capsys):
    """Runs `maitre budget`; returns exit code and JSON."""

    def call(*arguments):
        with pytest.raises(SystemExit) as finished:
            main(["budget", *map(str, arguments), "--json"])
        return finished.value.code, json.loads(capsys.readouterr().out)

    return call


def test_log_and_metrics_of_a_server_say_the_same(start, read, tmp_path):
    with start({}) as server:
        _, scraped = read("--metrics", server.probe.base_url)
    code, logged = read("--log", tmp_path / "server.log")
    assert (code, logged["is_ready"], logged["failure"]) == (0, True, None)
    assert logged["kv_cache_tokens"] == scraped["kv_tokens"] == 524_288
    assert (logged["max_concurrency"], logged["max_concurrency_at_len"]) == (256.0, 2048)
    assert (logged["max_num_seqs"], logged["max_num_batched_tokens"]) == (16, 512)
    assert scraped["num_gpu_blocks"] * scraped["block_size"] == 524_288
    assert (logged["engines"], scraped["engines"]) == (1, 1)


def test_the_log_of_a_server_that_does_not_start_says_why(start, read, tmp_path):
    with pytest.raises(ServerError):
        start({"--max-model-len": 1_000_000})
    code, logged = read("--log", tmp_path / "server.log")
    assert (code, logged["failure"]) == (1, "kv-smaller-than-max-model-len")
    assert logged["available_kv_gib"] == 1.0
    assert logged["estimated_max_model_len"] == 524_288 - 128  # one block is vLLM's own
