"""The live engine on a real vLLM (on a CPU): a run cut short, strangers, client latencies, a recording, a hang.

MAITRE_VLLM names its `vllm` program, for example /opt/vllm-cpu/bin/vllm; the model is a tiny one of random weights.
"""

import json
import os
import signal
import socket
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from maitre.records import Cell, Workload
from maitre.study import StudyDirectory
from maitre.trial import RecordedEngine, TrialFailure
from maitre.trial.command import ServeCommand
from maitre.trial.dials import dial_directory
from maitre.trial.facts import read_facts
from maitre.trial.live import LiveEngine
from maitre.trial.live_options import LiveOptions
from maitre.trial.live_recording import record_trials, write_recording
from maitre.trial.replay_check import replay_recording

pytestmark = pytest.mark.vllm

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "bos_token_id": 2047, "eos_token_id": 2047,
}  # fmt: skip
DRAW = np.random.default_rng(0)
TRAFFIC = Workload(
    name="mixed", source="this test", prompt_tokens=DRAW.integers(20, 200, 96), output_tokens=DRAW.integers(10, 60, 96)
)
SMALL, LARGE = (Cell(max_num_seqs=seqs, max_num_batched_tokens=1024) for seqs in (4, 32))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return tmp_path_factory.mktemp("live") / "study"


@pytest.fixture(scope="module")
def engine(vllm, study):
    """One server for all tests, until one of them hangs it."""
    model = study.parent / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["VLLM_CPU_KVCACHE_SPACE=1", "HF_HUB_OFFLINE=1", str(vllm), "serve", str(model), "--load-format", "dummy"]
    words += ["--skip-tokenizer-init", "--enforce-eager", "--max-model-len", "2048", "--no-enable-prefix-caching"]
    command = ServeCommand.parse([*words, "--port", str(port)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(study.parent / "state"))
        with LiveEngine(command, TRAFFIC, LARGE, study, LiveOptions(client_latency=True, stall_timeout_s=20)) as made:
            yield made


def is_all_of_the_traffic(steps):
    """Whether each token was computed once: nothing of another run is in the steps."""
    columns = steps.columns
    num_outputs = columns["num_decodes"].sum() + TRAFFIC.num_requests
    return columns["prefill_tokens"].sum() == TRAFFIC.prompt_tokens.sum() and num_outputs == TRAFFIC.output_tokens.sum()


def once(act):
    """A watcher that does something at its first look, and lets the run go on."""
    looks = []

    def watch(steps):
        if not looks:
            act()
        looks.append(steps)
        return False

    return watch


def test_the_server_says_what_it_is(engine, study):
    facts = engine.start(LARGE)
    assert facts == read_facts(study / "server.json")
    assert (facts.gpu, facts.start.dtype, facts.vocab_size) == ("cpu", "bfloat16", 2048)
    assert facts.config("m", SMALL).max_model_len == 2048
    assert facts.start.num_gpu_blocks * facts.start.block_size == 2**30 // 2048  # bytes of KV cache a token


def test_a_run_cut_short_leaves_nothing_to_the_next(engine, study, tmp_path):
    seen = []

    def watch(steps):
        seen.append(steps.num_steps)
        return len(seen) == 2

    short = engine.measure(SMALL, watch)
    dropped = engine._server.num_runs
    whole = engine.measure(LARGE)
    facts = read_facts(study / "server.json")
    recorded = record_trials(facts, TRAFFIC, [(whole.trial, whole.steps)], model="tiny", gpu=None, open_loop=False)
    write_recording(tmp_path / "after.json", *recorded)
    assert short.trial is None
    assert short.steps.num_steps == seen[-1]
    requests = dial_directory(study / "dials" / "start-1").read_run(dropped).request_columns
    assert np.isnan(requests["last_token_s"]).any()
    assert is_all_of_the_traffic(whole.steps)
    assert len(whole.steps.requests["last_token_s"]) == TRAFFIC.num_requests
    (replayed,) = replay_recording(tmp_path / "after.json", []).cells
    assert replayed.num_columns_off == 0
    assert engine.num_starts == 1


def test_the_client_sees_what_the_server_says_and_a_little_more(engine):
    trial = engine.measure(LARGE).trial
    assert trial.client_ttft_s.p50 >= trial.ttft_s.p50
    assert trial.client_itl_s.p50 > 0


def test_strangers_fail_the_cell_and_the_server_stays(engine):
    url = engine._server.server.base_url
    body = json.dumps({"model": engine._server.server.model, "prompt": [1, 2, 3], "max_tokens": 2}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with pytest.raises(TrialFailure) as caught:
        engine.measure(SMALL, once(lambda: urllib.request.urlopen(request, timeout=60).close()))
    assert caught.value.failed.code == "other-traffic"
    assert is_all_of_the_traffic(engine.measure(LARGE).steps)
    assert engine.num_starts == 1


def test_what_was_measured_is_a_recording(engine, study, tmp_path):
    directory, _ = StudyDirectory.resume(tmp_path / "kept", TRAFFIC, {})
    for cell in (SMALL, LARGE):
        measurement = engine.measure(cell)
        directory.add_trial(measurement.trial, measurement.steps)
    _, kept = StudyDirectory.resume(tmp_path / "kept", TRAFFIC, {})
    facts = read_facts(study / "server.json")
    recorded = record_trials(facts, TRAFFIC, kept, model="tiny", gpu="H200", open_loop=False)
    write_recording(tmp_path / "recording.json", *recorded)
    answers = RecordedEngine(tmp_path / "recording.json")
    of_the_client = {"engine", "client_ttft_s", "client_itl_s", "client_cpu_share", "client_lag_p99_s", "spoiled_by"}
    for trial, _ in kept:
        assert answers.measure(trial.cell).trial.model_dump(exclude=of_the_client) == trial.model_dump(
            exclude=of_the_client
        )
    report = replay_recording(tmp_path / "recording.json", [SMALL])
    assert [cell.num_columns_off for cell in report.cells] == [0, 0], "every column of every step is reproduced"
    assert [cell.calibrated_on for cell in report.cells] == [True, False]
    assert all(0 < cell.predicted_s < np.inf for cell in report.cells)


def test_an_engine_that_stands_still_is_a_hang_and_the_study_goes_on(engine):
    state = dial_directory(Path(engine._folder) / "dials" / "start-1").state()
    with pytest.raises(TrialFailure) as caught:
        engine.measure(SMALL, once(lambda: os.kill(state.pid, signal.SIGSTOP)))
    assert caught.value.failed.code == "hang"
    assert caught.value.failed.last_lines
    assert engine._server is None
    assert is_all_of_the_traffic(engine.measure(LARGE).steps)
    assert engine.num_starts == 2
