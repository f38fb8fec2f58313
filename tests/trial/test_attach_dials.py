"""A server of somebody else with maitre's scheduler: all its cells are measured, and it is left as it was found."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from maitre.errors import MaitreError, SystemFailure, UsageError
from maitre.records import Cell, Workload
from maitre.trial.attach import AttachOptions
from maitre.trial.attach_dials import AttachDialsEngine, attached_dials, cell_of, cells_above
from maitre.trial.dials import DialDirectory, dial_directory
from maitre.trial.engine import TrialFailure
from maitre.trial.load import drive, plan_load
from maitre.trial.probe import probe

START = Cell(max_num_seqs=16, max_num_batched_tokens=512)
SMALL = Cell(max_num_seqs=4, max_num_batched_tokens=64)
RUN = 1_700_000_000


@pytest.fixture
def traffic():
    """Forty requests that the small KV pool of the server holds."""
    draw = np.random.default_rng(1)
    return Workload(
        name="few", source="this test", prompt_tokens=draw.integers(20, 90, 40), output_tokens=draw.integers(5, 40, 40)
    )


@pytest.fixture
def server(tmp_path):
    """(address, directory of its dials) of a server that this test has started; STEP_S keeps it slow enough to meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dials = dial_directory(tmp_path / "dials")
    limits = ["--max-num-seqs", str(START.max_num_seqs), "--max-num-batched-tokens", str(START.max_num_batched_tokens)]
    fake = Path(__file__).parent / "live" / "fake_server.py"
    process = subprocess.Popen(
        [sys.executable, str(fake), "serve", "m", "--port", str(port), *limits],
        env=os.environ | dials.environment() | {"STEP_S": "0.002"},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url, process)
        yield url, dials.path
    finally:
        process.kill()
        process.wait()


def wait_for(url, process):
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return probe(url)
        except MaitreError:
            time.sleep(0.05)
    pytest.fail("the server did not start")


@pytest.fixture
def make_engine(server, traffic):
    url, path = server

    def make(first_run=RUN):
        found = probe(url)
        dials, state = attached_dials(path, found)
        return AttachDialsEngine(found, dials, state, traffic, AttachOptions(first_run, vocab_size=2048))

    return make


def state_of(server):
    return json.loads((server[1] / "state.json").read_text())


def test_cells_are_measured_with_their_steps_and_told_as_of_a_server_of_our_own(make_engine, traffic):
    with make_engine() as engine:
        small, large = engine.measure(SMALL), engine.measure(START)
    for measurement, cell in ((small, SMALL), (large, START)):
        trial = measurement.trial
        assert (trial.engine, trial.cell, trial.num_requests) == ("attach", cell, traffic.num_requests)
        assert trial.num_steps == measurement.steps.num_steps
        assert sum(trial.bound_share.values()) == pytest.approx(1)
        assert trial.client_cpu_share is not None
        assert measurement.steps.columns["num_running"].max() <= cell.max_num_seqs
    assert small.trial.num_steps > large.trial.num_steps


def test_the_server_is_left_at_the_dials_it_had_and_records_nothing_more(make_engine, server, traffic):
    with make_engine() as engine:
        engine.measure(SMALL)
    with make_engine(RUN + 100) as engine:
        engine.measure(SMALL)
        assert state_of(server)["applied"]["max_num_seqs"] == SMALL.max_num_seqs
    left = state_of(server)
    assert cell_of(attached_dials(server[1], probe(server[0]))[1].applied) == START
    files = {path: path.stat().st_size for path in server[1].iterdir()}
    drive(plan_load(traffic, 2048, seed=0, run=left["run"]), server[0], "m", timeout_s=30)
    assert {path: path.stat().st_size for path in server[1].iterdir()} == files


def test_nothing_is_turned_when_nothing_is_measured(make_engine, server):
    with make_engine():
        pass
    assert state_of(server)["run"] is None
    assert not (server[1] / "control.json").exists()


def test_a_watch_ends_a_run_and_the_next_one_is_whole(make_engine):
    with make_engine() as engine:
        cut = engine.measure(Cell(max_num_seqs=1, max_num_batched_tokens=64), watch=lambda steps: steps.num_steps > 20)
        whole = engine.measure(START)
    assert cut.trial is None
    assert cut.steps.num_steps > 20
    assert whole.trial.num_requests == 40


def test_traffic_of_others_fails_the_trial_and_the_study_can_go_on(make_engine, server):
    plan_of_others = plan_load(
        Workload(name="o", source="o", prompt_tokens=[20], output_tokens=[5]), 2048, seed=9, run=3
    )

    def meddle(steps):
        drive(plan_of_others, server[0], "m", timeout_s=30)
        return False

    with make_engine() as engine:
        with pytest.raises(TrialFailure) as caught:
            engine.measure(Cell(max_num_seqs=1, max_num_batched_tokens=64), watch=meddle)
        assert engine.measure(START).trial.num_requests == 40
    assert caught.value.failed.code == "other-traffic"
    assert caught.value.failed.engine == "attach"


def test_the_dials_of_another_server_are_found_out_before_anything_is_measured(server, traffic, tmp_path, monkeypatch):
    """Its directory looks alike, but no request of ours turns anything there."""
    other = dial_directory(tmp_path / "other")
    (other.path / "state.json").write_bytes((server[1] / "state.json").read_bytes())
    found = probe(server[0])
    dials, state = attached_dials(other.path, found)
    monkeypatch.setattr("maitre.trial.attach_dials.EMPTY_WAIT_S", 0.2)
    wait_applied = DialDirectory.wait_applied
    monkeypatch.setattr(DialDirectory, "wait_applied", lambda dials, run: wait_applied(dials, run, 0.2))
    engine = AttachDialsEngine(found, dials, state, traffic, AttachOptions(RUN, vocab_size=2048))
    with pytest.raises(SystemFailure, match="was not begun") as caught, engine:
        engine.measure(START)
    assert "MAITRE_DIALS_DIR" in caught.value.hint


def test_a_directory_that_no_scheduler_uses_is_refused(server, tmp_path):
    with pytest.raises(UsageError, match="no server with maitre's scheduler"):
        attached_dials(tmp_path / "nowhere", probe(server[0]))


def test_a_directory_of_another_version_is_refused(server, tmp_path):
    state = state_of(server) | {"vllm_version": "0.26.0"}
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "state.json").write_text(json.dumps(state))
    with pytest.raises(UsageError, match=r"belongs to vLLM 0\.26\.0"):
        attached_dials(tmp_path / "old", probe(server[0]))


def test_cells_above_the_start_are_named(server):
    _, state = attached_dials(server[1], probe(server[0]))
    large = Cell(max_num_seqs=16, max_num_batched_tokens=1024)
    assert cells_above([SMALL, START, large, large], state) == [large]
