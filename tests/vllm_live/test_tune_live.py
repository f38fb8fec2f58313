"""`maitre tune` against a real vLLM on a CPU: a sweep, a kill and its resumption, a start that fails, a crash.

MAITRE_VLLM names its `vllm` program, for example /opt/vllm-cpu/bin/vllm; the model is a tiny one of random weights.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from maitre.trial.processes import list_processes

pytestmark = pytest.mark.vllm

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "bos_token_id": 2047, "eos_token_id": 2047,
}  # fmt: skip
MAITRE = [sys.executable, "-c", "from maitre.cli import main; main()"]
SIX_CELLS = ["--max-num-seqs", "4,16,32", "--max-num-batched-tokens", "256,1024", "--present", "16x256"]


@pytest.fixture
def tune(vllm, tmp_path):
    """Start `maitre tune` in a process of its own, in a fresh folder."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "XDG_STATE_HOME": str(tmp_path / "state"),
    }  # fmt: skip
    server = [str(vllm), "serve", str(model), "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager"]
    server += ["--max-model-len", "2048", "--no-enable-prefix-caching", "--port", str(port)]

    def tune(*options, flags=(), requests="48", **more):
        words = ["tune", "fixed:64:24", "--num-requests", requests, "--study", str(tmp_path / "study")]
        words += ["--search", "grid", "--confirm", "none", *options, "--", *server, *flags]
        return subprocess.Popen(
            [*MAITRE, *words], env=variables | more, cwd=tmp_path, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    yield tune
    assert not vllm_processes(tmp_path), "a server was left behind"


def vllm_processes(folder: Path) -> list[int]:
    """Processes whose command line speaks of the test's own model."""
    found = []
    for process in list_processes():
        try:
            if str(folder / "model").encode() in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                found.append(process.pid)
        except OSError:
            continue
    return found


def engine_core(folder: Path) -> int | None:
    """The engine's process: a child of the test's server that calls itself EngineCore."""
    servers = set(vllm_processes(folder))
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            facts = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
            title = (path.parent / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if b"EngineCore" in title and int(facts["PPid"]) in servers:
            return int(path.parent.name)
    return None


def trials(folder: Path) -> list[dict]:
    path = folder / "study" / "trials.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_trials(folder: Path, count: int, process: subprocess.Popen, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while len(trials(folder)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"no {count} trials in {timeout_s} s"
        time.sleep(0.2)


def run(*words, folder: Path) -> dict:
    """What a verb prints as JSON."""
    done = subprocess.run([*MAITRE, *words, "--json"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_live_sweep_measures_six_cells_with_one_start_and_is_a_recording(tune, tmp_path):
    process = tune("--engine", "live", *SIX_CELLS, "--json")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    answer = json.loads(out)
    assert answer["num_measured"] == 6
    assert answer["baseline"] == {"max_num_seqs": 16, "max_num_batched_tokens": 256}
    measured = trials(tmp_path)
    assert len(measured) == 6
    assert len(list((tmp_path / "study" / "logs").iterdir())) == 1
    for trial in measured:
        assert trial["num_requests"] == 48
        assert trial["engine"] == "live"
        assert trial["client_cpu_share"] is not None
        assert sum(trial["bound_share"].values()) == pytest.approx(1)
    slowest = min(measured, key=lambda trial: trial["total_tokens_per_s"])
    assert slowest["num_steps"] >= max(t["num_steps"] for t in measured if t["max_num_seqs"] == 32)

    recording = tmp_path / "study" / "recording.json"
    replayed = run("replay", str(recording), "--calibrate-on", "4x256,32x1024", folder=tmp_path)
    assert [cell["num_columns_off"] for cell in replayed["cells"]] == [0] * 6
    assert [cell["recorded_num_steps"] for cell in replayed["cells"]] == [trial["num_steps"] for trial in measured]
    again = ["tune", "--engine", f"recorded:{recording}", "--present", "16x256", "--search", "grid"]
    told = run(*again, "--confirm", "none", "--study", "again", folder=tmp_path)
    assert told["baseline"] == answer["baseline"]
    lines = (tmp_path / "again" / "trials.jsonl").read_text().splitlines()
    speeds = {json.loads(line)["total_tokens_per_s"] for line in lines}
    assert speeds == {trial["total_tokens_per_s"] for trial in measured}

    (tmp_path / "study" / "study.json").unlink()  # as if it had been killed before the end
    resumed = tune("--engine", "live", *SIX_CELLS, "--json")
    out, err = resumed.communicate(timeout=60)
    assert resumed.returncode == 0, err
    assert json.loads(out)["num_measured"] == 6
    assert len(list((tmp_path / "study" / "logs").iterdir())) == 1, "the server was started for nothing"


def test_a_killed_run_is_resumed_by_the_same_command_and_its_server_is_stopped(tune, tmp_path):
    first = tune("--engine", "live", *SIX_CELLS)
    wait_for_trials(tmp_path, 2, first)
    first.kill()
    first.communicate(timeout=60)
    kept = trials(tmp_path)
    assert vllm_processes(tmp_path), "the server outlives a kill -9, and has to be found"
    second = tune("--engine", "live", *SIX_CELLS, "--json")
    out, err = second.communicate(timeout=600)
    assert second.returncode == 0, err
    assert json.loads(out)["num_measured"] == 6
    assert trials(tmp_path)[: len(kept)] == kept


def test_ctrl_c_stops_the_server_and_keeps_the_trials(tune, tmp_path):
    process = tune("--engine", "live", *SIX_CELLS)
    wait_for_trials(tmp_path, 1, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    recorded = json.loads((tmp_path / "study" / "recording.json").read_text())["cells"]
    assert len(recorded) == len(trials(tmp_path)) > 0


def test_a_start_that_fails_says_why_and_what_to_do(tune, tmp_path):
    process = tune(
        "--engine", "restart", *SIX_CELLS, flags=("--max-num-batched-tokens", "64"), VLLM_CPU_KVCACHE_SPACE="0"
    )
    _, err = process.communicate(timeout=300)
    assert process.returncode == 3, err
    assert "hint:" in err
    assert "Traceback" not in err


def test_a_crash_under_load_fails_its_cell_and_the_study_goes_on(tune, tmp_path):
    process = tune("--engine", "live", *SIX_CELLS, "--json", requests="96")
    wait_for_trials(tmp_path, 1, process)
    engine = engine_core(tmp_path)
    assert engine is not None
    killer = threading.Timer(0.3, os.kill, (engine, signal.SIGKILL))
    killer.start()
    out, err = process.communicate(timeout=600)
    killer.cancel()
    assert process.returncode == 0, err
    study = json.loads((tmp_path / "study" / "study.json").read_text())
    assert len(study["failed"]) == 1, err
    assert study["failed"][0]["code"] in {"crash-under-load", "killed", "unknown"}
    assert study["failed"][0]["remedy"]
    assert len(study["cells"]) == 5
    assert json.loads(out)["num_measured"] == 5
