"""A real vLLM on a CPU, scraped by a real Prometheus: the profile is that of the requests that were sent.

MAITRE_VLLM names the `vllm` program, MAITRE_PROMETHEUS the folder of Prometheus' programs. The server has the buckets
that the profile proposes, so vLLM takes them.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from maitre.metric_series import Histogram
from maitre.prometheus.client import PrometheusClient
from maitre.workload import Selection
from maitre.workload.prometheus import describe_served, draw_served, read_prometheus
from maitre.workload.prometheus.doubts import finer_buckets

pytestmark = [pytest.mark.vllm, pytest.mark.prometheus]

READY_TIMEOUT_S = 300
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "bos_token_id": 2047, "eos_token_id": 2047,
}  # fmt: skip
REQUESTS = [(prompt, output) for prompt in (30, 60, 130, 400) for output in (3, 12, 50)]
"""Prompt and output tokens."""
EXPECTED = Histogram(np.array([20.0, 500.0, np.inf]), np.array([0.0, 12.0, 0.0]), 0.0)


def load_servers():
    path = Path(__file__).parents[1] / "prometheus_live" / "servers.py"
    spec = importlib.util.spec_from_file_location("prometheus_servers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def servers():
    folder = os.environ.get("MAITRE_PROMETHEUS")
    if not folder and os.environ.get("CI") != "true":
        pytest.skip("MAITRE_PROMETHEUS does not name a folder of Prometheus' programs")
    return load_servers()


@pytest.fixture(scope="module")
def server(vllm, servers, tmp_path_factory):
    """The port of a vLLM that serves `tiny`."""
    folder = tmp_path_factory.mktemp("vllm")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    port = servers.free_port()
    buckets = json.dumps({"request_tokens": finer_buckets(EXPECTED)})
    words = [str(vllm), "serve", str(folder), "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager"]
    words += ["--max-model-len", "1024", "--port", str(port), "--served-model-name", "tiny"]
    words += ["--custom-histogram-buckets", buckets]
    variables = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(words, env=variables, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until_ready(servers, port, process, folder / "log")
        yield port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def wait_until_ready(servers, port, process, log):
    deadline = time.monotonic() + READY_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            servers.fetch(f"http://127.0.0.1:{port}/health")
        except OSError:
            time.sleep(1)
        else:
            return
    pytest.fail("vLLM did not start:\n" + log.read_text()[-3000:])


def complete(port, prompt, output):
    body = {"model": "tiny", "prompt": list(range(1, prompt + 1)), "max_tokens": output, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        answer.read()


def test_the_profile_is_that_of_the_requests_that_were_sent(server, servers, tmp_path):
    programs = os.environ["MAITRE_PROMETHEUS"]
    prometheus = servers.start_prometheus(programs, tmp_path, targets=[f"127.0.0.1:{server}"], interval_s=0.5)
    try:
        prometheus.wait_for('vllm:request_success_total{finished_reason="length"} >= 0', at_least=0.0)
        for prompt, output in REQUESTS:
            complete(server, prompt, output)
        prometheus.wait_for("sum(vllm:request_success_total)", at_least=len(REQUESTS))
        prometheus.wait_for("sum(vllm:request_success_total offset 2s)", at_least=len(REQUESTS))
        served = read_prometheus(prometheus.url, Selection(since="10min"))
        names = PrometheusClient(prometheus.url).label_values("__name__")
    finally:
        prometheus.stop()
    prompts, outputs = np.array(REQUESTS).T
    described = describe_served(served)
    assert described.name == "tiny"
    assert described.num_requests == pytest.approx(len(REQUESTS), abs=1)
    for lengths, truth in ((described.prompt_tokens, prompts), (described.output_tokens, outputs)):
        assert lengths.mean == pytest.approx(truth.mean(), rel=0.02)
        assert lengths.p50.low < np.percentile(truth, 50, method="inverted_cdf") <= lengths.p50.high
        assert lengths.max.low < truth.max() <= lengths.max.high
    assert described.output_share_of_max_tokens == pytest.approx(1, rel=0.02)
    assert set(described.finished_reasons) == {"length"}
    assert described.mean_latency_s > 0
    assert described.concurrency_mean is not None
    assert described.ttft_s is not None
    assert described.prefix_cache_hit_rate > 0
    assert draw_served(served, 100, 0, 1024).prompt_tokens.mean() == pytest.approx(prompts.mean(), rel=0.02)
    assert not [name for name in names if re.fullmatch(r"vllm:request_prompt_tokens", name)]
