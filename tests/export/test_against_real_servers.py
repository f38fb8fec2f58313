"""A real vLLM on a CPU, scraped by a real Prometheus that evaluates the rules: every query has an answer."""

import importlib.util
import json
import os
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from maitre.export import Queries, make_dashboard, make_rules, metrics_of_scrape, metrics_of_version

pytestmark = [pytest.mark.vllm, pytest.mark.prometheus]

place = Path(__file__).resolve().parents[1] / "prometheus_live" / "servers.py"
spec = importlib.util.spec_from_file_location("prometheus_servers", place)
servers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(servers)

READY_TIMEOUT_S = 400
NUM_SERVED, NUM_GIVEN_UP = 12, 4
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "bos_token_id": 2047, "eos_token_id": 2047,
}  # fmt: skip


@pytest.fixture(scope="module")
def url(vllm, tmp_path_factory):
    """The address of a vLLM that serves a tiny model of random weights."""
    folder = tmp_path_factory.mktemp("vllm")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    port = servers.free_port()
    command = [
        vllm, "serve", folder, "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager", "--port", port,
        "--max-model-len", "4096", "--max-num-seqs", "8", "--max-num-batched-tokens", "512",
        "--served-model-name", "tiny",
    ]  # fmt: skip
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            list(map(str, command)), env=os.environ | variables, stdout=log, stderr=log, start_new_session=True
        )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline and not is_up(address):
            time.sleep(1)
        assert is_up(address), (folder / "log").read_text("utf-8", "replace")[-3000:]
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        process.wait(60)


def is_up(address):
    try:
        return servers.fetch(f"{address}/health") is not None
    except OSError:
        return False


@pytest.fixture(scope="module")
def made(url, thresholds):
    """Rules and dashboard for the names that this server exposes."""
    queries = Queries(metrics_of_scrape(servers.fetch(f"{url}/metrics").decode(), url), ('job="vllm"',))
    return make_rules(queries, thresholds), make_dashboard(queries, thresholds, "x")


@pytest.fixture(scope="module")
def prometheus(promtool, url, made, tmp_path_factory):
    """A Prometheus that scrapes the server every second while it serves, and evaluates the rules as often."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "rules.json").write_text(json.dumps({"groups": made[0].groups}), "utf-8")
    config = servers.scrape_config([url.removeprefix("http://")], 1.0)
    config |= {"global": {"evaluation_interval": "1s"}, "rule_files": ["rules.json"]}
    (folder / "prometheus.yml").write_text(json.dumps(config), "utf-8")
    port = servers.free_port()
    program = Path(os.environ["MAITRE_PROMETHEUS"]) / "prometheus"
    command = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
               f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    server = servers.Server("Prometheus", command, f"http://127.0.0.1:{port}", folder).wait_until_ready("/-/ready")
    try:
        server.wait_for("count_over_time(vllm:num_requests_running[1m])", 2)
        for _ in range(NUM_SERVED):
            complete(url, 16)
        for _ in range(NUM_GIVEN_UP):
            give_up(url)
        server.wait_for("sum(vllm:request_success_total)", NUM_SERVED)
        server.wait_for("sum(vllm:time_to_first_token_seconds_count)", NUM_SERVED + NUM_GIVEN_UP)
        server.wait_for("model_name:vllm_generation_tokens:rate5m", 0.01)
        yield server
    finally:
        server.stop()


def complete(url, num_tokens):
    body = {
        "model": "tiny",
        "prompt": list(range(300)),
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "detokenize": False,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as answer:
        answer.read()


def give_up(url):
    """Read the first bytes of a long answer, and hang up."""
    body = {"model": "tiny", "prompt": [5] * 50, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    text = json.dumps(body)
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())
        received = b""
        while b"data:" not in received:
            received += connection.recv(4096)


def ask(server, expr):
    """The rows of an instant query."""
    return server.get("/api/v1/query?" + urllib.parse.urlencode({"query": expr}))["data"]["result"]


def test_the_server_has_what_its_version_is_said_to_have(url):
    version = json.loads(servers.fetch(f"{url}/version"))["version"].partition("+")[0]
    there = set(metrics_of_scrape(servers.fetch(f"{url}/metrics").decode(), url).written)
    said = set(metrics_of_version(version).written)
    with_a_flag = ("kv_block", "spec_decode", "estimated", "lora", "corrupted", "kv_fetch", "watermark", "by_source")
    assert {name for name in said - there if not any(word in name for word in with_a_flag)} == set()


def test_nothing_is_left_out(made):
    rules, dashboard = made
    assert (rules.left_out, dashboard.left_out) == ([], [])


def test_prometheus_evaluates_every_rule(prometheus, made):
    groups = prometheus.get("/api/v1/rules")["data"]["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    assert len(found) == sum(len(group["rules"]) for group in made[0].groups)
    assert {rule["name"]: rule.get("lastError", "") for rule in found if rule["health"] != "ok"} == {}
    assert [rule["name"] for rule in found if rule.get("state") == "firing"] == []


def test_every_recorded_series_is_there(prometheus, made):
    recorded = [rule["record"] for group in made[0].groups for rule in group["rules"] if "record" in rule]
    assert recorded
    assert [name for name in recorded if not ask(prometheus, name)] == []


def test_every_plot_has_points(prometheus, made):
    empty = []
    for panel in made[1].content["panels"]:
        for target in panel.get("targets", []):
            expr = target["expr"].replace("$__rate_interval", "5m").replace("$model_name", "tiny")
            if not ask(prometheus, expr):
                empty.append((panel["title"], expr))
    assert empty == []


def test_a_request_that_its_client_gave_up_ends_nowhere(prometheus):
    """What the alert VllmRequestsLost is made for; if this fails, vLLM has begun to count them."""
    began = float(ask(prometheus, "sum(vllm:time_to_first_token_seconds_count)")[0]["value"][1])
    ended = float(ask(prometheus, "sum(vllm:request_success_total)")[0]["value"][1])
    assert (began, ended) == (NUM_SERVED + NUM_GIVEN_UP, NUM_SERVED)
