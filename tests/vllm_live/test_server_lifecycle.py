"""A real vLLM on a CPU: started, stopped without a trace, and its refusals told apart.

MAITRE_VLLM names its `vllm` program, for example /opt/vllm-cpu/bin/vllm; the model is a tiny one of random weights.
"""

import json
import socket
from pathlib import Path

import pytest

from maitre.trial.command import ServeCommand
from maitre.trial.processes import list_processes
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


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def start(vllm, model, tmp_path):
    """Start it with these flags."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [str(vllm), "serve", str(model), "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager"]
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


def session_members(session):
    return [process.pid for process in list_processes() if process.session == session and not process.has_ended]


def test_a_server_becomes_ready_and_leaves_no_process(start):
    with start({"--max-num-seqs": 8}) as server:
        assert server.probe.version
        assert server.probe.has_metrics
        assert server.probe.max_model_len == 2048
        assert any("max_num_seqs': 8" in line for line in server.last_lines(1000))
        assert len(session_members(server.pid)) >= 2  # the API server and the engine
    assert session_members(server.pid) == []


def test_a_token_budget_below_max_num_seqs_is_a_refused_setting(start):
    with pytest.raises(ServerError) as caught:
        start({"--max-num-seqs": 64, "--max-num-batched-tokens": 32})
    assert caught.value.failure.code == "refused-setting"
    assert "raise --max-num-batched-tokens to 64" in caught.value.failure.remedy


def test_a_kv_cache_smaller_than_one_request_is_told_with_the_length_that_fits(start):
    with pytest.raises(ServerError) as caught:
        start({"--max-model-len": 1_000_000})
    assert caught.value.failure.code == "kv-smaller-than-max-model-len"
    assert "lower --max-model-len to 52" in caught.value.failure.remedy
