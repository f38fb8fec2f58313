"""What a killed maitre leaves behind is found and stopped by the next run, and nothing else is."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from maitre.trial.processes import read_process
from maitre.trial.registry import (
    ServerRegistry,
    StartedServer,
    default_state_path,
    describe_started,
    without_secrets,
)

FAKE = r"""
import subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"])
print("child", child.pid, flush=True)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(b'{"data": [{"id": "m", "owned_by": "vllm"}]}')
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""

STARTER = """
import sys, time
from pathlib import Path
from maitre.trial.command import ServeCommand
from maitre.trial.registry import ServerRegistry
from maitre.trial.server import start_server
folder, port, fake = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
command = ServeCommand.parse([sys.executable, "-c", fake, "serve", "m", "--port", port])
registry = ServerRegistry(folder / "study", folder / "state")
with start_server(command, log_path=folder / "server.log", ready_timeout_s=30, registry=registry) as server:
    print(server.pid, flush=True)
    time.sleep(99)
"""


def is_running(pid):
    process = read_process(pid)
    return process is not None and not process.has_ended


@pytest.fixture
def starter(tmp_path):
    """Another maitre that has just started a server: (process, pid of the server, pid of the server's child)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-c", STARTER, str(tmp_path), str(port), FAKE]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        child = int((tmp_path / "server.log").read_text().split()[1])
        yield process, pid, child
        process.kill()
    ServerRegistry(tmp_path / "study", tmp_path / "state").stop_orphans(grace_s=0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_maitre_that_is_asked_to_end_takes_its_server_along(starter, number, tmp_path):
    process, pid, child = starter
    process.send_signal(number)
    assert process.wait(20) == (128 + number if number != signal.SIGINT else -signal.SIGINT)
    assert not is_running(pid)
    assert not is_running(child)
    assert ServerRegistry(tmp_path / "study", tmp_path / "state").servers() == []


def test_a_killed_maitre_leaves_a_server_that_the_next_run_stops(starter, tmp_path):
    process, pid, child = starter
    registry = ServerRegistry(tmp_path / "study", tmp_path / "state")
    assert registry.stop_orphans() == []  # its maitre is alive
    process.kill()
    process.wait()
    assert is_running(pid)
    assert is_running(child)
    os.kill(pid, signal.SIGKILL)  # its first process may be gone as well
    elsewhere = ServerRegistry(tmp_path / "another study", tmp_path / "state")
    (report,) = elsewhere.stop_orphans()
    assert (report.outcome, report.server.pid) == ("stopped", pid)
    assert not is_running(pid)
    assert not is_running(child)
    assert elsewhere.stop_orphans() == registry.stop_orphans() == []


def test_a_maitre_that_is_killed_before_it_has_recorded_the_server_leaves_none(tmp_path):
    killed = """
class Killed(ServerRegistry):
    def add(self, server):
        print(server.pid, flush=True)
        os.kill(os.getpid(), 9)
"""
    script = STARTER.replace("folder, port", f"import os{killed}folder, port", 1).replace(
        "= ServerRegistry", "= Killed"
    )
    words = [sys.executable, "-c", script, str(tmp_path), "1", FAKE]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        assert process.wait(10) == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(pid)
    assert (tmp_path / "server.log").read_text() == ""


@pytest.fixture
def stranger():
    """A process in a session of its own that maitre has not started."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"], start_new_session=True) as process:
        yield process
        process.kill()


@pytest.fixture
def registry(tmp_path):
    return ServerRegistry(tmp_path / "study", tmp_path / "state")


def describe(process, registry, tmp_path, **changes) -> StartedServer:
    record = describe_started(
        process.pid,
        ["vllm", "serve", "m"],
        server_id="abc",
        folder=registry.folder,
        base_url="http://127.0.0.1:1",
        log_path=tmp_path / "log",
    )
    ended = {"starter_pid": 2**22 + 1}  # above the largest number that Linux gives
    return record.model_copy(update=ended | changes)


def test_a_process_with_another_start_time_is_never_stopped(stranger, registry, tmp_path):
    registry.add(describe(stranger, registry, tmp_path, start_ticks=1))
    (report,) = registry.stop_orphans()
    assert report.outcome == "gone"
    assert stranger.poll() is None
    assert registry.servers() == []


def test_members_without_their_leader_are_stopped_only_if_they_write_to_the_log(registry, tmp_path):
    script = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']).pid)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as leader:
        record = describe(leader, registry, tmp_path)
        child = int(leader.stdout.readline())
        os.waitpid(leader.pid, 0)
        leader.returncode = 0
        registry.add(record)
        (report,) = registry.stop_orphans()
        assert report.outcome == "gone"
        assert is_running(child)
        os.kill(child, signal.SIGKILL)


def test_servers_of_another_machine_or_container_are_left_alone(stranger, registry, tmp_path):
    for changes in ({"host": "elsewhere"}, {"pid_namespace": "pid:[1]"}):
        registry.add(describe(stranger, registry, tmp_path, **changes))
        assert registry.stop_orphans() == []
        assert len(registry.servers()) == 1
    assert stranger.poll() is None


def test_servers_from_before_a_restart_of_the_machine_are_forgotten(stranger, registry, tmp_path):
    registry.add(describe(stranger, registry, tmp_path, boot_id="earlier"))
    assert [report.outcome for report in registry.stop_orphans()] == ["gone"]
    assert stranger.poll() is None
    assert registry.servers() == []


def test_a_starter_with_a_recycled_number_does_not_protect_the_server(stranger, registry, tmp_path):
    alive = {"starter_pid": os.getpid(), "starter_start_ticks": read_process(os.getpid()).start_ticks}
    registry.add(describe(stranger, registry, tmp_path, **alive))
    assert registry.stop_orphans() == []
    registry.add(describe(stranger, registry, tmp_path, **alive | {"starter_start_ticks": 1}))
    assert [report.outcome for report in registry.stop_orphans(grace_s=5)] == ["stopped"]
    assert stranger.wait(5) == -signal.SIGTERM


def test_broken_records_are_passed_over(registry):
    registry.folder.mkdir(parents=True)
    (registry.folder / "x.json").write_text("{")
    (registry.folder / "y.json").write_text('{"id": "y"}')
    (registry.folder / "z.json").mkdir()
    assert registry.stop_orphans() == []


def test_a_state_folder_that_cannot_be_written_is_no_reason_to_stop(stranger, tmp_path):
    (tmp_path / "state").write_text("a file")
    registry = ServerRegistry(tmp_path / "study", tmp_path / "state")
    registry.add(describe(stranger, registry, tmp_path))
    assert len(registry.servers()) == 1


def test_a_kill_that_the_system_refuses_is_reported(stranger, registry, tmp_path, monkeypatch):
    monkeypatch.setattr("maitre.trial.registry.send_signal", lambda *_: None)
    monkeypatch.setattr("maitre.trial.registry.KILL_WAIT_S", 0.1)
    registry.add(describe(stranger, registry, tmp_path))
    assert [report.outcome for report in registry.stop_orphans(grace_s=0)] == ["still-running"]
    assert len(registry.servers()) == 1


def test_the_state_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert default_state_path() == Path("/x/maitre/servers")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_state_path() == Path("/home/me/.local/state/maitre/servers")


def test_keys_and_tokens_are_not_stored():
    words = ["vllm", "serve", "m", "--api-key", "k", "--api_key=k", "-e", "HF_TOKEN=k", "VLLM_API_KEY=k", "--seed", "1"]
    shown = " ".join(without_secrets(words))
    assert shown == "vllm serve m --api-key *** --api_key=*** -e HF_TOKEN=*** VLLM_API_KEY=*** --seed 1"


def test_a_process_is_known_by_its_number_and_start(stranger):
    process = read_process(stranger.pid)
    assert (process.group, process.session, process.has_ended) == (stranger.pid, stranger.pid, False)
    stranger.kill()
    while not read_process(stranger.pid).has_ended:
        time.sleep(0.01)
    assert read_process(stranger.pid).start_ticks == process.start_ticks
    assert read_process(2**22 + 1) is None
