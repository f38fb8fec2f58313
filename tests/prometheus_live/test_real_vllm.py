"""A real vLLM, scraped by a real Prometheus: what it counted is what the window says.

Needs MAITRE_VLLM beside MAITRE_PROMETHEUS; the model is a tiny one of random weights.
"""

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from maitre.errors import MaitreError
from maitre.metric_series import histogram, total_increase
from maitre.prometheus.client import PrometheusClient
from maitre.trial.probe import probe
from maitre.verify.sources.from_prometheus import read_window

pytestmark = [pytest.mark.prometheus, pytest.mark.vllm]

READY_TIMEOUT_S = 300
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16", "bos_token_id": 2047, "eos_token_id": 2047,
}  # fmt: skip
NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 6, 20, 8


@pytest.fixture(scope="module")
def vllm():
    name = os.environ.get("MAITRE_VLLM")
    if name and shutil.which(name):
        return name
    if os.environ.get("CI") == "true":
        pytest.fail(f"MAITRE_VLLM={name}: no vLLM there, and CI runs every test")
    pytest.skip("MAITRE_VLLM does not name a vllm program")


@pytest.fixture(scope="module")
def server(vllm, free_port, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    words = [
        vllm, "serve", str(folder), "--served-model-name", "tiny", "--load-format", "dummy", "--skip-tokenizer-init",
        "--enforce-eager", "--max-model-len", "1024", "--host", "127.0.0.1", "--port", str(free_port),
    ]  # fmt: skip
    variables = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, env=variables, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{free_port}", process, folder / "log")
        yield f"127.0.0.1:{free_port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def wait_for(url: str, process: subprocess.Popen, log: Path):
    deadline = time.monotonic() + READY_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return probe(url)
        except MaitreError:
            time.sleep(1)
    pytest.fail("the server did not start:\n" + log.read_text()[-3000:])


def complete(server):
    prompt = list(range(1, PROMPT_TOKENS + 1))
    body = {"model": "tiny", "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "detokenize": False}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{server}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def test_a_window_holds_what_the_server_did(server, start_server):
    prometheus = start_server("prometheus", targets=[server], interval_s=0.5)
    finished = '{__name__=~"vllm.request_generation_tokens_count"}'
    prometheus.wait_for(f"count({finished})")
    start_s = time.time()
    for _ in range(NUM_REQUESTS):
        complete(server)
    prometheus.wait_for(finished, at_least=NUM_REQUESTS)
    found = read_window(PrometheusClient(prometheus.url), start_s, time.time())

    def gain(name):
        return total_increase([one for one in found if one.name == name])

    assert gain("vllm:request_success_total") == NUM_REQUESTS
    assert gain("vllm:prompt_tokens_total") == NUM_REQUESTS * PROMPT_TOKENS
    assert gain("vllm:generation_tokens_total") == NUM_REQUESTS * OUTPUT_TOKENS
    assert gain("vllm:num_preemptions_total") == 0
    prompts = histogram(found, "vllm:request_prompt_tokens")
    assert (prompts.count, prompts.mean) == (NUM_REQUESTS, PROMPT_TOKENS)
    gaps = histogram(found, "vllm:inter_token_latency_seconds")
    assert gaps.count == NUM_REQUESTS * (OUTPUT_TOKENS - 1)
    assert {one.engine for one in found if one.name == "vllm:num_requests_running"} == {(server, "0")}
    (cache,) = [one for one in found if one.name == "vllm:cache_config_info"]
    assert int(cache.labels["num_gpu_blocks"]) > 0
    assert {one.labels["model_name"] for one in found if one is not cache} == {"tiny"}
