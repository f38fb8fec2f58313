"""One real vLLM on a CPU that a real Prometheus scrapes while three loads go by; tests look at what was seen of it.

Load it by its path, as prometheus_live/servers.py. The model is a tiny one of random weights. First come single
requests, one after another; then more at once than the pool holds; then some that their clients give up.
"""

import json
import socket
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from maitre.export import Dashboard, Queries, Rules, Thresholds, make_dashboard, make_rules, metrics_of_scrape
from maitre.metric_series import Histogram
from maitre.slo import parse_latency_targets
from maitre.trial.command import ServeCommand
from maitre.trial.registry import ServerRegistry
from maitre.trial.server import start_server
from maitre.verify.sources.from_scrapes import Scraped, scrape_for
from maitre.workload.prometheus.doubts import finer_buckets

READY_TIMEOUT_S = 300
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "bos_token_id": 2047, "eos_token_id": 2047,
}  # fmt: skip
BLOCK_SIZE, NUM_GPU_BLOCKS, MAX_NUM_SEQS, MAX_MODEL_LEN = 32, 40, 8, 1024
EXPECTED = Histogram(np.array([20.0, 500.0, np.inf]), np.array([0.0, 12.0, 0.0]), 0.0)
"""Of the lengths: the server has the buckets that a profile would propose for it."""
FLAGS = {
    "--load-format": "dummy", "--served-model-name": "tiny", "--max-model-len": MAX_MODEL_LEN,
    "--max-num-seqs": MAX_NUM_SEQS, "--max-num-batched-tokens": 512, "--block-size": BLOCK_SIZE,
    "--num-gpu-blocks-override": NUM_GPU_BLOCKS,
    "--custom-histogram-buckets": json.dumps({"request_tokens": finer_buckets(EXPECTED)}),
}  # fmt: skip
SWITCHES = ("--skip-tokenizer-init", "--enforce-eager", "--enable-logging-iteration-details")
ONE_ENGINE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
"""The worker runs within the engine's process: one process less that imports vLLM before the server is ready."""
VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOG_STATS_INTERVAL": "1", **ONE_ENGINE_PROCESS,
}  # fmt: skip
TARGETS = ("itl_p99=50ms", "ttft_p95=500ms", "tpot_p90=40ms", "e2e_p95=20s")

SINGLE = [(prompt, output) for prompt in (30, 60, 130, 400) for output in (3, 12, 50)]
"""Prompt and output tokens; the prompts begin alike, so that the prefix cache has hits."""
NUM_AT_ONCE, PROMPT_TOKENS, OUTPUT_TOKENS = 24, 200, 200
"""Eight of them need 8 × 400 tokens, the pool has 39 × 32. No prompt begins like another one."""
NUM_GIVEN_UP = 4


@dataclass(frozen=True)
class Watched:
    """What was seen of the server, which has been stopped; its Prometheus still answers."""

    target: str
    version: str
    exposition: str
    """Before any load."""
    rules: Rules
    dashboard: Dashboard
    """Both for the names that this server exposes."""
    prometheus: Any
    single_s: tuple[float, float]
    """From when until when the single requests were served."""
    before: Scraped
    during: Scraped
    after: Scraped
    """Around the requests that came at once."""
    log: bytes
    """Of the time in which they were served."""
    end_s: float
    """The last moment at which Prometheus knew the server to be up."""
    rule_groups: list[dict[str, Any]]
    """As Prometheus evaluated them by then."""

    def ask(self, expr):
        """The rows of an instant query at the end."""
        query = urllib.parse.urlencode({"query": expr, "time": self.end_s})
        return self.prometheus.get(f"/api/v1/query?{query}")["data"]["result"]


@contextmanager
def watch(vllm, servers, programs, folder):
    """Start both, send the loads, stop vLLM, and give what was seen.

    Args:
        vllm: the program.
        servers: the module prometheus_live/servers.py.
        programs: the folder with Prometheus' programs.
        folder: an empty one.
    """
    port = servers.free_port()
    with start_server(
        serve_command(vllm, folder, port),
        log_path=folder / "server.log",
        ready_timeout_s=READY_TIMEOUT_S,
        registry=ServerRegistry(folder / "study", folder / "state"),
    ) as server:
        url = server.probe.base_url
        exposition = servers.fetch(f"{url}/metrics").decode()
        queries = Queries(metrics_of_scrape(exposition, url), ('job="vllm"',))
        thresholds = Thresholds(targets=parse_latency_targets(TARGETS), max_num_seqs=MAX_NUM_SEQS)
        rules = make_rules(queries, thresholds)
        prometheus = start_prometheus(servers, programs, folder / "prometheus", f"127.0.0.1:{port}", rules.groups)
        try:
            seen = {
                "target": f"127.0.0.1:{port}",
                "version": json.loads(servers.fetch(f"{url}/version"))["version"],
                "exposition": exposition,
                "rules": rules,
                "dashboard": make_dashboard(queries, thresholds, "x"),
                "prometheus": prometheus,
            }
            seen |= send_single(url, prometheus) | send_at_once(url, folder / "server.log")
            seen |= give_some_up(url, prometheus)
        except BaseException:
            prometheus.stop()
            raise
    try:
        yield Watched(**seen)
    finally:
        prometheus.stop()


def serve_command(vllm, folder, port):
    (folder / "config.json").write_text(json.dumps(CONFIG))
    words = [str(vllm), "serve", str(folder), "--port", str(port), *SWITCHES]
    words += [str(text) for flag in FLAGS.items() for text in flag]
    return ServeCommand.parse(words).with_environment(VARIABLES)


def start_prometheus(servers, programs, folder, target, groups):
    """A Prometheus that scrapes twice a second, and evaluates the rules each second."""
    folder.mkdir()
    (folder / "rules.json").write_text(json.dumps({"groups": groups}), "utf-8")
    config = servers.scrape_config([target], 0.5)
    config |= {"global": {"evaluation_interval": "1s"}, "rule_files": ["rules.json"]}
    (folder / "prometheus.yml").write_text(json.dumps(config), "utf-8")
    port = servers.free_port()
    command = [
        programs / "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    return servers.Server("Prometheus", command, f"http://127.0.0.1:{port}", folder).wait_until_ready("/-/ready")


def send_single(url, prometheus):
    prometheus.wait_for("count_over_time(vllm:num_requests_running[1m])", 2)
    start_s = time.time()
    for prompt, output in SINGLE:
        complete(url, list(range(1, prompt + 1)), output)
    prometheus.wait_for("sum(vllm:request_success_total offset 2s)", len(SINGLE))
    return {"single_s": (start_s, time.time())}


def send_at_once(url, log_path):
    before = scrape_for(url, 0, 1)
    num_logged_bytes = log_path.stat().st_size
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        prompts = [[1000 + i] * PROMPT_TOKENS for i in range(NUM_AT_ONCE)]
        sent = [pool.submit(complete, url, prompt, OUTPUT_TOKENS) for prompt in prompts]
        during = scrape_for(url, 3, 1)
        for one in sent:
            one.result()
    log = log_path.read_bytes()[num_logged_bytes:]
    return {"before": before, "during": during, "after": scrape_for(url, 0, 1), "log": log}


def give_some_up(url, prometheus):
    for _ in range(NUM_GIVEN_UP):
        give_up(url)
    num_ended = len(SINGLE) + NUM_AT_ONCE
    prometheus.wait_for("sum(vllm:request_success_total)", num_ended)
    prometheus.wait_for("sum(vllm:time_to_first_token_seconds_count)", num_ended + NUM_GIVEN_UP)
    prometheus.wait_for("model_name:vllm_generation_tokens:rate5m", 0.01)
    return {"end_s": time.time(), "rule_groups": prometheus.get("/api/v1/rules")["data"]["groups"]}


def complete(url, prompt, num_tokens):
    body = {"model": "tiny", "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "detokenize": False}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=300) as answer:
        answer.read()


def give_up(url):
    """Read the first bytes of a long answer, and hang up."""
    text = json.dumps({"model": "tiny", "prompt": [5] * 50, "max_tokens": 900, "ignore_eos": True, "stream": True})
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())
        received = b""
        while b"data:" not in received:
            received += connection.recv(4096)
