"""vLLM's own benchmark, and a server that is already up, on a real vLLM on a CPU.

MAITRE_VLLM names its `vllm` program, for example /opt/vllm-cpu/bin/vllm; the model is a tiny one of random weights.
"""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from maitre.cli import tune_attach, tune_bench
from maitre.cli.grid_options import GridOptions
from maitre.cli.search_options import SearchOptions
from maitre.cli.server_options import ServerOptions
from maitre.cli.workload_options import WorkloadOptions
from maitre.errors import MaitreError, UsageError
from maitre.trial.dials import dial_directory
from maitre.trial.probe import probe
from maitre.trial.processes import list_processes

pytestmark = pytest.mark.vllm

READY_TIMEOUT_S = 300
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "bos_token_id": 2047, "eos_token_id": 2047,
}  # fmt: skip
VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
LOGNORMAL = "lognormal:60:0.7:24:0.5"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def serve_words(vllm, model, *flags):
    words = [str(vllm), "serve", str(model), "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager"]
    return [*words, "--max-model-len", "1024", *flags]


def running_on(model):
    """Processes whose command line speaks of the test's own model."""
    found = []
    for process in list_processes():
        try:
            if str(model).encode() in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                found.append(process.pid)
        except OSError:
            continue
    return found


def test_the_benchmark_runs_two_cells_with_the_workloads_own_lengths_and_tells_why_a_third_fails(vllm, model, tmp_path):
    """Without chunked prefill vLLM refuses a token budget below max_model_len."""
    variables = [f"{name}={value}" for name, value in VARIABLES.items()]
    flags = ["--port", "81", "--enable-auto-tool-choice", "--api-key", "k", "--no-enable-chunked-prefill"]
    words = [*variables, *serve_words(vllm, model, *flags)]
    study = tune_bench.measure(
        WorkloadOptions(workload=LOGNORMAL, num_requests=64, seed=1),
        ServerOptions(),
        GridOptions(present="4x1024", max_num_seqs="32", max_num_batched_tokens="512,1024"),
        SearchOptions(),
        " ".join(words),
        tmp_path / "study",
    )
    assert [str(trial.cell) for trial in study.cells] == ["4x1024", "32x1024"]
    assert {trial.spoiled_by for trial in study.cells} == {""}  # vLLM counted the tokens of the workload, one by one
    for trial in study.cells:
        assert trial.total_tokens_per_s * trial.duration_s == pytest.approx(study.total_tokens, rel=1e-3)
        log = (tmp_path / "study" / "logs" / f"bench-{trial.cell}-1.log").read_text()
        assert re.findall(r"Total num (?:prompt|output) tokens:\s+(\d+)", log) == ["4347", "1683"]
    (failed,) = study.failed
    assert (str(failed.cell), failed.code) == ("32x512", "refused-setting")
    assert "raise --max-num-batched-tokens to 1024" in failed.remedy
    assert (study.server.vllm_version, study.server.max_model_len) == ("0.32.0", 1024)
    assert running_on(model) == []


@pytest.fixture(scope="module")
def server(vllm, model, tmp_path_factory):
    """(address, directory of its dials) of a server of somebody else's, with maitre's scheduler and a key."""
    folder = tmp_path_factory.mktemp("server")
    dials = dial_directory(folder / "dials")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--scheduler-cls", "maitre_dials.DialScheduler", "--max-num-seqs", "16", "--max-num-batched-tokens", "512"]
    words = serve_words(vllm, model, "--port", str(port), "--api-key", "sesame", "--served-model-name", "tiny", *flags)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            words, env=os.environ | VARIABLES | dials.environment(), stdout=log, stderr=log, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url, process, folder / "log")
        yield url, dials.path
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def wait_for(url, process, log):
    deadline = time.monotonic() + READY_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return probe(url, "sesame")
        except MaitreError:
            time.sleep(1)
    pytest.fail("the server did not start:\n" + log.read_text()[-3000:])


def attach(server, model, path, *, dials=None, key="sesame", **grid):
    return tune_attach.measure(
        WorkloadOptions(workload=LOGNORMAL, num_requests=100), ServerOptions(model=str(model)), GridOptions(**grid),
        SearchOptions(search="grid"), server[0], dials, path, open_loop=False, api_key=key,
    )  # fmt: skip


def test_a_server_that_is_up_is_measured_as_it_is(server, model, tmp_path):
    study = attach(server, model, tmp_path / "study", present="16x512")
    (trial,) = study.cells
    assert (trial.num_requests, trial.num_preemptions, trial.cached_token_share) == (100, 0, 0)
    assert trial.total_tokens_per_s * trial.duration_s == pytest.approx(study.total_tokens)
    assert 0 < trial.itl_s.max < trial.e2e_s.max
    assert trial.ttft_s.max < trial.e2e_s.max
    assert trial.num_gpu_blocks == 4096  # 1 GiB: 2,048 B a token, 128 tokens a block
    assert "served others" not in trial.spoiled_by


def test_a_key_is_asked_for(server, model, tmp_path, monkeypatch):
    for name in ("VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="asks for an API key"):
        attach(server, model, tmp_path / "study", key=None, present="16x512")
    with pytest.raises(UsageError, match="refuses the API key"):
        attach(server, model, tmp_path / "study", key="wrong", present="16x512")


def test_somebody_elses_requests_are_seen(server, model, tmp_path):
    is_over = threading.Event()

    def be_somebody_else():
        body = {"model": "tiny", "prompt": [7, 8, 9], "max_tokens": 5, "ignore_eos": True}
        headers = {"Content-Type": "application/json", "Authorization": "Bearer sesame"}
        request = urllib.request.Request(f"{server[0]}/v1/completions", json.dumps(body).encode(), headers)
        while not is_over.is_set():
            urllib.request.urlopen(request, timeout=60).close()

    other = threading.Thread(target=be_somebody_else)
    other.start()
    try:
        study = attach(server, model, tmp_path / "study", present="16x512")
    finally:
        is_over.set()
        other.join()
    assert "the server served others, too" in study.cells[0].spoiled_by
    assert "other requests that it finished" in study.cells[0].spoiled_by


def test_with_its_dials_all_cells_are_measured_and_it_is_left_as_it_was(server, model, tmp_path):
    grid = {"max_num_seqs": "2,16", "max_num_batched_tokens": "512"}
    study = attach(server, model, tmp_path / "study", dials=server[1], **grid)
    steps = {trial.max_num_seqs: trial.num_steps for trial in study.cells}
    assert steps.keys() == {2, 16}
    assert steps[2] > 3 * steps[16]
    assert (study.recommendation.baseline, study.server.vllm_version) == (study.server.cell, "0.32.0")
    state = json.loads((server[1] / "state.json").read_text())
    assert state["applied"]["max_num_seqs"] == 16
    assert "is above 16" in state["refused"]  # so it records nothing more
