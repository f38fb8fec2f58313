"""A real vLLM under load with its dials set wrongly on purpose: `maitre verify` has to say which one."""

import asyncio
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from maitre.cli import main
from maitre.records import Cell
from maitre.trial.dials import fresh_dials

path = Path(__file__).parents[2] / "benchmarks/served_conditions.py"
spec = importlib.util.spec_from_file_location("served_conditions", path)
served = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = served  # dataclasses look their module up
spec.loader.exec_module(served)

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024,
    "max_position_embeddings": 2048, "torch_dtype": "float32", "eos_token_id": 1023,
}  # fmt: skip
"""Its steps are slow enough for the server's other process to keep up with them on two cores."""
VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
SECONDS, EVERY_S = 10, 0.5
"""Of a condition, and from one scrape to the next."""


def cell(seqs, tokens):
    return Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens)


CONDITIONS = [
    served.Condition("seq-capped", cell(4, 1024), 64, 100, clients=24),
    served.Condition("raise-token-budget", cell(64, 64), 900, 8, clients=24),
    served.Condition("kv-bound", cell(64, 1024), 64, 150, clients=32, num_gpu_blocks=40),
    served.Condition("client-limited", cell(64, 1024), 64, 100, clients=6),
]


@pytest.fixture(scope="module")
def scrapes(vllm, tmp_path_factory):
    """What the server showed under each condition, a file for each."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    _, dials = fresh_dials(folder / "dials")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [str(vllm), "serve", str(folder), "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager"]
    words += ["--max-model-len", "1024", "--block-size", "32", "--no-enable-prefix-caching", "--port", str(port)]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        server = served.start([*words, *dials.arguments(cell(64, 1024))], dials, folder / "server.log")

    async def go_through():
        await served.wait_ready(f"http://127.0.0.1:{port}", server)
        for run, condition in enumerate(CONDITIONS, start=1):
            await served.record(condition, run, dials, port, SECONDS, folder, EVERY_S)

    try:
        asyncio.run(go_through())
    finally:
        stop(server)
    return folder


def stop(server):
    """Politely, then for sure; its processes are a group of their own."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(server.pid, sent)
        with suppress(subprocess.TimeoutExpired):
            server.wait(30)


@pytest.mark.vllm
@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.name)
def test_the_dial_that_is_set_wrongly_is_named(scrapes, capsys, condition):
    setting = ["--max-num-seqs", str(condition.cell.max_num_seqs)]
    setting += ["--max-num-batched-tokens", str(condition.cell.max_num_batched_tokens)]
    with pytest.raises(SystemExit):
        main(["verify", "--metrics", str(scrapes / f"{condition.name}.prom.gz"), *setting, "--json"])
    answer = json.loads(capsys.readouterr().out)
    verdicts = {condition.name} | ({"lower-max-num-seqs"} if condition.name == "kv-bound" else set())
    assert answer["verdict"] in verdicts, answer["summary"]
