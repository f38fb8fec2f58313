"""The live dials on a real vLLM (on a CPU): MAITRE_VLLM names its `vllm` executable."""

import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from maitre.errors import UsageError
from maitre.records import Cell, Workload
from maitre.simulator.replay import replay_at_once
from maitre.simulator.rules import SchedulerRules
from maitre.trial.dials import dial_directory

pytestmark = pytest.mark.vllm

START_S = 240
LARGEST = Cell(max_num_seqs=32, max_num_batched_tokens=1024)
MAX_MODEL_LEN, VOCABULARY = 1024, 2048
MODEL = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "dtype": "bfloat16", "vocab_size": VOCABULARY,
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 1024, "max_position_embeddings": 4096, "bos_token_id": 2047, "eos_token_id": 2047,
    "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": METASPACE, "post_processor": None, "decoder": METASPACE,
    "model": {"type": "WordLevel", "vocab": {f"\u2581t{i}": i for i in range(VOCABULARY)}, "unk_token": "\u2581t0"},
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "\u2581t2047", "chat_template": "t1 t2"}
    (path / "config.json").write_text(json.dumps(MODEL))
    (path / "tokenizer").mkdir()  # beside a config.json it would be read as Qwen's own
    (path / "tokenizer" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (path / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return path


class Server:
    """One `vllm serve` with the dials, and the runs asked of it."""

    def __init__(self, vllm, model, dials, log):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [vllm, "serve", model, "--load-format", "dummy", "--max-model-len", str(MAX_MODEL_LEN)]
        command += [
            "--tokenizer",
            model / "tokenizer",
            "--served-model-name",
            "tiny",
            "--enforce-eager",
            "--port",
            str(self.port),
        ]
        environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", **dials.environment()}
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [*command, *dials.arguments(LARGEST)],
                env=os.environ | environment, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        self.dials, self.log, self.run = dials, log, 0

    def wait(self):
        deadline = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
            except (urllib.error.URLError, OSError):
                time.sleep(1)
        pytest.fail("the server did not start:\n" + self.log.read_text()[-3000:])

    def stop(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def turn(self, seqs, tokens, blocks=None):
        self.run += 1
        self.dials.turn(self.run, Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens), blocks)

    def send(self, path, index, body, output):
        body |= {"model": "tiny", "max_tokens": output, "ignore_eos": True, "temperature": 0}
        headers = {"Content-Type": "application/json", "X-Request-Id": self.dials.request_id(self.run, index)}
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                pytest.fail(f"{path}: {error}: {error.read().decode()}")

    def complete(self, prompts, output, index=0):
        """All prompts in one HTTP request."""
        return self.send("/v1/completions", index, {"prompt": prompts}, output)


@pytest.fixture(scope="module")
def server(vllm, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    server = Server(vllm, model, dial_directory(folder / "dials"), folder / "log")
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def make_prompts(lengths):
    return [[random.randrange(VOCABULARY - 1) for _ in range(length)] for length in lengths]


def test_the_start_is_told(server):
    state = server.dials.state()
    assert (state.start.max_num_seqs, state.start.max_num_batched_tokens) == (32, 1024)
    assert state.start.max_model_len == MAX_MODEL_LEN
    assert state.run is None


def test_no_step_exceeds_the_dials_and_blocks_come_back(server):
    pool = server.dials.state().start.num_gpu_blocks
    per_request = -(-MAX_MODEL_LEN // server.dials.state().start.block_size)
    for seqs, tokens, blocks in [(32, 1024, None), (4, 64, per_request + 4), (16, 256, pool // 2), (32, 1024, None)]:
        server.turn(seqs, tokens, blocks)
        server.complete(make_prompts([100] * 40), 20)
        assert server.dials.wait_applied(server.run).applied.num_gpu_blocks == (blocks or pool)
        recorded = server.dials.read_run(server.run)
        columns, requests = recorded.columns, recorded.request_columns
        scheduled = columns["num_decodes"] + columns["prefill_tokens"]
        assert scheduled.max() <= tokens
        assert (columns["num_decodes"] + columns["num_prefills"]).max() <= seqs
        assert columns["num_running"].max() == min(seqs, 32)
        assert columns["num_free_blocks"].max() < (blocks or pool)
        assert requests["request_index"].tolist() == list(range(40))
        assert (requests["num_prompt_tokens"] == 100).all()
        assert (requests["num_output_tokens"] == 20).all()


def test_requests_are_found_by_their_names(server):
    server.turn(32, 1024)
    prompts = make_prompts(range(20, 28))
    with ThreadPoolExecutor(9) as threads:
        answers = [threads.submit(server.complete, [prompt], 5, i) for i, prompt in enumerate(prompts)]
        chat = {"messages": [{"role": "user", "content": "t1"}]}
        answers.append(threads.submit(server.send, "/v1/chat/completions", 8, chat, 5))
        assert all(answer.result()["usage"]["completion_tokens"] == 5 for answer in answers)
    requests = server.dials.read_run(server.run).request_columns
    assert requests["request_index"].tolist() == list(range(9))
    assert requests["num_prompt_tokens"][:8].tolist() == list(range(20, 28))
    assert (requests["arrival_s"] <= requests["first_scheduled_s"]).all()
    assert (requests["first_scheduled_s"] < requests["first_token_s"]).all()
    assert (requests["first_token_s"] <= requests["last_token_s"]).all()


def test_the_prefix_cache_is_empty_at_the_start_of_a_run(server):
    block_size = server.dials.state().start.block_size
    prompts = make_prompts([block_size + 50])
    cached = []
    for _ in range(2):
        server.turn(32, 1024)
        for index in range(2):
            server.complete(prompts, 2, index)
        cached.append(server.dials.read_run(server.run).request_columns["num_cached_tokens"].tolist())
    assert cached == [[0, block_size], [0, block_size]]


@pytest.mark.parametrize("is_small", [False, True])
def test_requests_at_once_are_scheduled_as_replayed(server, is_small):
    """Over HTTP requests arrive one after another: a long prompt before them fills the steps until all are there."""
    seqs, tokens, lengths = 16, 64, [900, *random.Random(1).choices(range(1, 300), k=24)]
    blocks = 1 + -(-MAX_MODEL_LEN // server.dials.state().start.block_size) if is_small else None
    for _ in range(5):
        server.turn(seqs, tokens, blocks)
        server.complete(make_prompts(lengths), 60)
        recorded = server.dials.read_run(server.run)
        starts, last_arrival_s = recorded.columns["schedule_start_s"], recorded.request_columns["arrival_s"].max()
        if last_arrival_s < starts[900 // tokens - 1]:
            break
    else:
        pytest.fail("the requests never arrived in time")
    replay = replay_run(recorded, server.dials.state(), lengths, [60] * len(lengths))
    late = starts > last_arrival_s
    assert replay.num_preemptions.any() == is_small
    assert_same_schedule(recorded, replay, late)


def test_async_scheduling_too(vllm, model, tmp_path):
    """The CPU server schedules synchronously, so the real AsyncScheduler is driven by hand."""
    dials, draw = dial_directory(tmp_path), random.Random(2)
    lengths = [(draw.randint(1, 900), draw.randint(1, 300)) for _ in range(150)]
    words = ["1", "48", "700", "300", ",".join(f"{prompt}:{output}" for prompt, output in lengths)]
    driver = Path(__file__).with_name("drive_async.py")
    done = subprocess.run(
        [vllm.with_name("python"), driver, model, *words],
        env=os.environ | dials.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    recorded, state = dials.read_run(1), dials.state()
    assert state.start.async_scheduling
    replay = replay_run(recorded, state, *zip(*lengths, strict=True))
    assert replay.num_preemptions.any()
    assert_same_schedule(recorded, replay, np.ones(replay.num_steps, dtype=bool))


def test_what_cannot_be_set_is_refused(server):
    before = server.dials.state().applied
    server.turn(64, 1024)
    server.complete(make_prompts([10]), 2)
    with pytest.raises(UsageError, match="max_num_seqs 64 is above 32"):
        server.dials.wait_applied(server.run)
    assert server.dials.state().applied == before


def replay_run(recorded, state, prompts, outputs):
    """maitre's own schedule of the same requests under the applied dials."""
    applied = recorded.applied
    workload = Workload(name="sent", source="this test", prompt_tokens=prompts, output_tokens=outputs)
    rules = SchedulerRules.of_version(
        state.vllm_version,
        Cell(max_num_seqs=applied.max_num_seqs, max_num_batched_tokens=applied.max_num_batched_tokens),
        applied.num_gpu_blocks,
        block_size=state.start.block_size,
        enable_prefix_caching=state.start.enable_prefix_caching,
        async_scheduling=state.start.async_scheduling,
    )
    return replay_at_once(workload, rules)


def assert_same_schedule(recorded, replay, is_complete):
    """Every column of every step; the queue's length only where all requests had arrived."""
    columns, requests = recorded.columns, recorded.request_columns
    assert len(columns["num_decodes"]) == replay.num_steps
    assert [name for name in columns if name in replay.columns and name != "num_waiting"
            and not np.array_equal(columns[name], replay.columns[name])] == []  # fmt: skip
    assert np.array_equal(columns["num_waiting"][is_complete], replay.columns["num_waiting"][is_complete])
    assert np.array_equal(requests["num_preemptions"], replay.num_preemptions)
    assert np.array_equal(requests["num_cached_tokens"], replay.num_cached_tokens)
    assert np.array_equal(requests["first_token_s"], columns["output_end_s"][replay.first_token_step])
    assert np.array_equal(requests["last_token_s"], columns["output_end_s"][replay.last_token_step])
