"""Servers that become ready, crash, hang, will not end or have children: started, told apart and stopped for good."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from maitre.errors import SystemFailure, UsageError
from maitre.trial.command import ServeCommand
from maitre.trial.processes import read_process
from maitre.trial.registry import ServerRegistry, running_processes
from maitre.trial.server import ServerError, start_server

FAKE = r"""
import json, os, signal, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
how = os.environ.get("HOW", "").split()
port = int(sys.argv[sys.argv.index("--port") + 1])
print("\x1b[1;36m(APIServer pid=1)\x1b[0;0m INFO 01-01 00:00:00 [a.py:1] starting", sys.argv[1:], flush=True)
if "reads" in how:
    print("read", repr(sys.stdin.read()), flush=True)
if "deaf" in how:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "forks" in how:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(99)"
    for changes in ({}, {"process_group": 0}):
        child = subprocess.Popen([sys.executable, "-c", deaf], **changes)
        print("child", child.pid, flush=True)
if "crashes" in how:
    print("ValueError: max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64).")
    sys.exit(3)
if "hangs" in how:
    time.sleep(99)
asked = 0
class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        global asked
        asked += 1
        status, body = 200, ""
        if self.path == "/die":
            print("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", flush=True)
            os._exit(1)
        if "foreign" in how: status = 404
        elif self.path == "/health" and "late" in how and asked < 3: status = 503
        elif self.path == "/version": body = '{"version": "0.26.0"}'
        elif self.path == "/metrics": body = "vllm:num_requests_running 0"
        elif self.path == "/v1/models":
            if "locked" in how or "--api-key" in sys.argv and self.headers["Authorization"] != "Bearer k": status = 401
            body = json.dumps({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]})
        self.send_response(status); self.end_headers(); self.wfile.write(body.encode())
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def registry(tmp_path):
    return ServerRegistry(tmp_path / "study", tmp_path / "state")


@pytest.fixture
def start(tmp_path, registry, port):
    """Start the fake that behaves in these ways."""

    def start(how="", *arguments, ready_timeout_s=20.0, words=None):
        words = words or [sys.executable, "-c", FAKE, "serve", "m", "--port", str(port), *arguments]
        command = ServeCommand.parse([f"HOW={how}", *words])
        return start_server(
            command, log_path=tmp_path / "logs" / "server.log", ready_timeout_s=ready_timeout_s, registry=registry
        )

    return start


def records(registry):
    return [len(list(folder.glob("*.json"))) for folder in (registry.folder, registry._state_folder)]


def is_running(pid):
    process = read_process(pid)
    return process is not None and not process.has_ended


def test_a_server_is_ready_when_it_names_its_models_and_gone_when_it_is_stopped(start, registry, port):
    with start("late reads") as server:
        assert server.is_alive()
        assert server.base_url == f"http://127.0.0.1:{port}"
        assert (server.probe.version, server.probe.model_names, server.probe.max_model_len) == ("0.26.0", ("m",), 4096)
        assert os.getsid(server.pid) == server.pid != os.getsid(0)
        assert server.last_lines(2)[0].startswith("INFO 01-01 00:00:00 [a.py:1] starting")
        assert server.last_lines(1) == ["read ''"]
        assert server.last_lines(0) == []
        assert records(registry) == [1, 1]
        assert registry.stop_orphans() == []
    assert not server.is_alive()
    assert server.exit_code == -signal.SIGTERM
    assert not is_running(server.pid)
    assert records(registry) == [0, 0]
    server.stop()


def test_a_key_in_the_command_is_used_and_not_stored(start, registry):
    with start("", "--api-key", "k") as server:
        assert server.probe.model_names == ("m",)
        (record,) = registry.servers()
        assert record.command[-2:] == ("--api-key", "***")


def test_a_crash_at_the_start_is_seen_at_once_and_told(start, registry):
    started = time.monotonic()
    with pytest.raises(ServerError, match=r"server\.log") as caught:
        start("crashes", ready_timeout_s=60)
    assert time.monotonic() - started < 10
    assert caught.value.failure.code == "refused-setting"
    assert caught.value.hint == "raise --max-num-batched-tokens to 64 or more, or lower --max-num-seqs to 32"
    assert caught.value.failure.last_lines[-1].startswith("ValueError")
    assert records(registry) == [0, 0]


def test_a_later_start_is_not_judged_by_an_earlier_log(start):
    with pytest.raises(ServerError):
        start("crashes")
    with start() as server:
        assert server.failure().code == "unknown"


def test_a_server_that_hangs_is_given_up_and_ended(start, registry):
    with pytest.raises(ServerError) as caught:
        start("hangs", ready_timeout_s=0.5)
    assert caught.value.failure.code == "timeout"
    assert records(registry) == [0, 0]


def test_children_that_ignore_sigterm_or_leave_the_group_end_too(start):
    server = start("forks deaf")
    children = [int(line.split()[1]) for line in server.last_lines(9) if line.startswith("child")]
    assert len(children) == 2
    assert all(map(is_running, [server.pid, *children]))
    server.stop(grace_s=0.2)
    assert not any(map(is_running, [server.pid, *children]))
    assert server.exit_code == -signal.SIGKILL


def test_children_that_outlive_the_first_process_end_too(start):
    server = start("forks")
    children = [int(line.split()[1]) for line in server.last_lines(9) if line.startswith("child")]
    os.kill(server.pid, signal.SIGKILL)
    while server.is_alive():
        time.sleep(0.01)
    assert server.failure().code == "killed"
    assert all(map(is_running, children))
    server.stop(grace_s=0.1)
    assert not any(map(is_running, children))


def test_a_death_under_load_is_told(start):
    with start() as server:
        with socket.create_connection(("127.0.0.1", server.command.port)) as connection:
            connection.sendall(b"GET /die HTTP/1.0\r\n\r\n")
            connection.recv(1)
        while server.is_alive():
            time.sleep(0.01)
        assert server.failure().code == "crash-under-load"
        assert server.failure(timed_out=True).code == "crash-under-load"


def test_a_server_that_is_not_vllm_or_wants_a_key_is_refused_and_ended(start, registry):
    with pytest.raises(UsageError, match="is not vLLM"):
        start("foreign")
    with pytest.raises(UsageError, match="asks for an API key"):
        start("locked")
    assert records(registry) == [0, 0]


def test_a_missing_program_is_an_error_of_usage(start):
    with pytest.raises(UsageError, match="no program 'nowhere-vllm'"):
        start(words=["nowhere-vllm", "serve", "m"])


def test_a_log_that_cannot_be_written_is_said(start, tmp_path):
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(SystemFailure, match="cannot be written"):
        start()


def test_a_port_in_use_is_refused_by_what_answers_there(start, port):
    with start(), pytest.raises(ServerError, match=r"vLLM 0\.26\.0 with m answers") as caught:
        start()
    assert caught.value.failure.code == "port-in-use"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", port), Handler) as other:
        threading.Thread(target=other.serve_forever, args=(0.05,), daemon=True).start()
        with pytest.raises(ServerError, match=r"another HTTP server \(BaseHTTP"):
            start()
        other.shutdown()


def test_a_port_held_by_something_else_is_refused(start, port):
    with socket.create_server(("127.0.0.1", port)) as other:
        threading.Thread(target=answer_nonsense, args=(other,), daemon=True).start()
        with pytest.raises(ServerError, match="does not speak HTTP"):
            start()


def answer_nonsense(listener):
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.sendall(b"SSH-2.0-nonsense\r\n")


def test_an_interruption_while_waiting_stops_the_server(start, registry):
    threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        start("hangs", ready_timeout_s=60)
    assert records(registry) == [0, 0]


def test_an_interruption_inside_the_context_stops_the_server(start):
    with pytest.raises(KeyboardInterrupt), start() as server:
        raise KeyboardInterrupt
    assert not is_running(server.pid)


def test_a_second_interruption_shortens_the_grace_and_not_the_end(start):
    server = start("deaf")
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        server.stop(grace_s=60)
    assert time.monotonic() - started < 10
    assert not is_running(server.pid)


def end_myself():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)


def test_sigterm_unwinds_while_a_server_runs_and_not_after(start):
    with pytest.raises(SystemExit) as caught, start() as server:
        end_myself()
    assert caught.value.code == 143
    assert not is_running(server.pid)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_in_a_thread_signals_are_left_alone(start):
    def run():
        with start() as server:
            seen.append(server.is_alive())

    seen = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [True]


def test_a_container_is_ended_by_its_id(start, registry, tmp_path, port):
    docker = tmp_path / "docker"
    docker.write_text(
        f"""#!/bin/sh
echo "$@" >> {tmp_path}/calls
[ "$1" = kill ] && exit 0
while [ "$1" != --cidfile ]; do shift; done
printf %064d 7 > "$2"
exec {sys.executable} -c "$FAKE" serve m --port {port}
"""
    )
    docker.chmod(0o755)
    words = [f"FAKE={FAKE}", str(docker), "run", "-p", f"{port}:8000", "vllm/vllm-openai", "m"]
    with start(words=words) as server:
        assert server.probe.model_names == ("m",)
        assert len(list(registry.folder.glob("*.cid"))) == 1
    run, kill = (tmp_path / "calls").read_text().splitlines()
    assert run.startswith(f"run -p {port}:8000 --cidfile {registry.folder}")
    assert kill == "kill " + "7".zfill(64)
    assert list(registry.folder.iterdir()) == []


def test_nothing_is_started_that_is_not_recorded(start, registry, tmp_path):
    registry.folder.parent.mkdir()
    registry.folder.write_text("a file where the folder should be")
    with pytest.raises(SystemFailure, match="cannot be written"):
        start()
    assert (tmp_path / "logs" / "server.log").read_text() == ""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_recycled_number_is_never_taken_for_the_server(start, registry):
    with start() as server:
        (record,) = registry.servers()
        assert [process.pid for process in running_processes(record)] == [server.pid]
        for other in ({"start_ticks": record.start_ticks - 1}, {"boot_id": "other"}, {"pid_namespace": "other"}):
            assert running_processes(record.model_copy(update=other)) == []
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert running_processes(record.model_copy(update={"pid": gone.pid, "process_group": gone.pid})) == []
