"""A real vLLM on a CPU that preempts: its metrics, its log and its logged steps tell the same load.

MAITRE_VLLM names its `vllm` program, for example /opt/vllm-cpu/bin/vllm; the model is a tiny one of random weights.
"""

import json
import socket
import threading
import urllib.request

import numpy as np
import pytest

from maitre.metric_series import total_increase
from maitre.trial.command import ServeCommand
from maitre.trial.registry import ServerRegistry
from maitre.trial.server import start_server
from maitre.verify.observed import observed
from maitre.verify.sources.counter_order import contradictory_counters
from maitre.verify.sources.from_log import read_log
from maitre.verify.sources.from_scrapes import scrape_for
from maitre.vllm.metric_names import canonical_name

pytestmark = pytest.mark.vllm

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "bos_token_id": 2047, "eos_token_id": 2047,
}  # fmt: skip
FLAGS = {
    "--max-model-len": 1024, "--max-num-seqs": 8, "--max-num-batched-tokens": 512, "--block-size": 32,
    "--num-gpu-blocks-override": 40,
}  # fmt: skip
NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 24, 200, 200
"""Eight of them need 8 × 400 tokens, the pool has 39 × 32."""


@pytest.fixture
def busy_server(vllm, tmp_path):
    """A server with too small a pool, and what it was scraped as while it answered all requests."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [str(vllm), "serve", str(tmp_path), "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager"]
    words += ["--port", str(port), "--no-enable-prefix-caching", "--enable-logging-iteration-details"]
    words += [text for name, value in FLAGS.items() for text in (name, str(value))]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOG_STATS_INTERVAL": "1"}
    command = ServeCommand.parse(words).with_environment(variables)
    registry = ServerRegistry(tmp_path / "study", tmp_path / "state")
    log_path = tmp_path / "server.log"
    with start_server(command, log_path=log_path, ready_timeout_s=300, registry=registry) as server:
        url = server.probe.base_url
        before = scrape_for(url, 0, 1)
        clients = [
            threading.Thread(target=complete, args=(url, server.probe.model_names[0])) for _ in range(NUM_REQUESTS)
        ]
        for client in clients:
            client.start()
        during = scrape_for(url, 3, 1)
        for client in clients:
            client.join()
        after = scrape_for(url, 0, 1)
    return before, during, after, log_path.read_bytes()


def complete(url, model):
    body = {"model": model, "prompt": [5] * PROMPT_TOKENS, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    body["stop_token_ids"], body["detokenize"] = [], False
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        answer.read()


def test_metrics_log_and_steps_tell_the_same_load(busy_server):
    before, during, after, log_bytes = busy_server
    assert all(canonical_name(one.name) for one in during.series if one.name.startswith("vllm:"))
    assert contradictory_counters(during.series) == ()
    log = read_log([log_bytes], "server.log")
    seen = observed(during.series)
    assert (seen.num_gpu_blocks, seen.block_size, seen.engines) == (40, 32, 1)
    assert max(sample.stats.num_running for sample in log.samples) <= 8
    assert max(sample.stats.num_waiting for sample in log.samples) >= NUM_REQUESTS - 8
    steps = log.iterations
    assert steps.num_context_tokens.sum() == NUM_REQUESTS * PROMPT_TOKENS
    decoded = steps.num_generation_tokens.sum() - steps.num_recomputed_tokens.sum()
    assert decoded <= NUM_REQUESTS * OUTPUT_TOKENS
    assert observed(after.series).preemptions_total > 0
    assert steps.num_recomputed_tokens.sum() > 0
    assert total_increase([one for one in during.series if one.name == "vllm:generation_tokens_total"]) > 0
    assert observed(before.series).preemptions_total == 0
    assert np.isfinite(steps.time_s).all()
