"""A server of ours that maitre starts like any other, and engines on it."""

import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from maitre.records import Cell, Workload
from maitre.trial import run_watch
from maitre.trial.command import ServeCommand
from maitre.trial.live import LiveEngine
from maitre.trial.live_options import LiveOptions


@pytest.fixture
def traffic():
    """Forty requests that the small KV pool of the server holds."""
    draw = np.random.default_rng(1)
    return Workload(
        name="few", source="this test", prompt_tokens=draw.integers(20, 90, 40), output_tokens=draw.integers(5, 40, 40)
    )


@pytest.fixture
def make_engine(tmp_path, monkeypatch, traffic):
    """Engines on one study, each with a server that has the faults in `how` (fake_server.py)."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(run_watch, "LOOK_S", 0.25)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def make(how="", workload=traffic, step_s=0.001, version="0.32.0", **options):
        fake = Path(__file__).with_name("fake_server.py")
        words = [f"HOW={how}", f"STEP_S={step_s}", f"VLLM={version}", sys.executable, str(fake), "serve", "m"]
        command = ServeCommand.parse([*words, "--port", str(port)])
        largest = Cell(max_num_seqs=16, max_num_batched_tokens=512)
        return LiveEngine(command, workload, largest, tmp_path / "study", LiveOptions(**options))

    return make
