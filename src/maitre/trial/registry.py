"""What maitre has started: one small file a server, so that a run finds and stops what a killed run left behind.

A server is recorded before its program runs, in the study's `servers/` and, the same record, in the user's state
directory ($XDG_STATE_HOME/maitre/servers). A process is only ever stopped when it belongs to the recorded session and
the session's leader still has its recorded start time; when the leader is gone, only what still writes to the
server's log. Never by name.

Schema history
    maitre-server-1     first version
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from maitre.errors import SystemFailure
from maitre.records import Record
from maitre.trial.processes import (
    Process,
    boot_id,
    list_processes,
    pid_namespace,
    read_process,
    send_signal,
    writes_to,
)

KILL_WAIT_S = 10.0
"""How long a process may take to vanish after SIGKILL: releasing a GPU's memory takes a few seconds."""


class StartedServer(Record):
    """A server that maitre started."""

    schema_version: Literal["maitre-server-1"] = "maitre-server-1"
    id: str
    folder: str
    """The study's `servers/`, which has this record."""
    command: tuple[str, ...]
    """Without secrets."""
    base_url: str
    log_path: str
    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    process_group: int
    """Also the session: the server's first process leads both."""
    start_ticks: int
    """When the first process started, in clock ticks since boot (`/proc/PID/stat`, field 22)."""
    starter_pid: int
    starter_start_ticks: int
    container_tool: tuple[str, ...] = ()
    """`docker`, with its own options."""
    container_id_file: str | None = None


class OrphanReport(Record):
    """What was done about a server that a run left behind."""

    server: StartedServer
    outcome: Literal["stopped", "gone", "still-running"]
    """`gone`: nothing of it was left, and its record is removed. `still-running`: the system refused to stop it."""


class ServerRegistry:
    """The servers started for one study, and those of other studies of the same user."""

    def __init__(self, study_path: Path, state_path: Path | None = None) -> None:
        self.folder = study_path / "servers"
        self._state_folder = state_path or default_state_path()

    def add(self, server: StartedServer) -> None:
        """Record a server; it is on disk when this returns.

        Raises:
            SystemFailure: the disk refuses.
        """
        try:
            _write_record(self.folder, server)
        except OSError as error:
            hint = "check permissions and the disk"
            raise SystemFailure(f"{self.folder}: cannot be written ({error.strerror})", hint) from error
        with suppress(OSError):  # the study's own record is enough for a run that knows the study
            _write_record(self._state_folder, server)

    def remove(self, server: StartedServer) -> None:
        """Forget a server that has been stopped."""
        for folder in (Path(server.folder), self.folder, self._state_folder):
            (folder / f"{server.id}.json").unlink(missing_ok=True)
        if server.container_id_file:
            Path(server.container_id_file).unlink(missing_ok=True)

    def servers(self) -> list[StartedServer]:
        """All recorded servers, of this study and of others; unreadable records are passed over."""
        found: dict[str, StartedServer] = {}
        for folder in (self.folder, self._state_folder):
            for path in sorted(folder.glob("*.json")):
                with suppress(OSError, ValidationError):
                    server = StartedServer.model_validate_json(path.read_bytes())
                    found.setdefault(server.id, server)
        return list(found.values())

    def stop_orphans(self, grace_s: float = 20.0) -> list[OrphanReport]:
        """Stop the servers on this machine whose maitre is gone. Others are left alone and not reported."""
        reports = []
        for server in self.servers():
            if server.host != socket.gethostname() or _is_starter_alive(server):
                continue
            was_running = bool(running_processes(server))
            stop_processes(server, grace_s)
            left = running_processes(server)
            if not left:
                self.remove(server)
            outcome: Literal["stopped", "gone", "still-running"] = "stopped" if was_running else "gone"
            reports.append(OrphanReport(server=server, outcome="still-running" if left else outcome))
        return reports


def describe_started(
    pid: int,
    command: Sequence[str],
    *,
    server_id: str,
    folder: Path,
    base_url: str,
    log_path: Path,
    container_tool: Sequence[str] = (),
    container_id_file: str | None = None,
) -> StartedServer:
    """The record of a process that was just started by this process, as leader of a new session."""
    child, starter = read_process(pid), read_process(os.getpid())
    return StartedServer(
        id=server_id,
        folder=str(folder.resolve()),
        command=without_secrets(command),
        base_url=base_url,
        log_path=str(log_path.resolve()),
        host=socket.gethostname(),
        boot_id=boot_id(),
        pid_namespace=pid_namespace(),
        pid=pid,
        process_group=pid,
        start_ticks=child.start_ticks if child else 0,
        starter_pid=os.getpid(),
        starter_start_ticks=starter.start_ticks if starter else 0,
        container_tool=tuple(container_tool),
        container_id_file=container_id_file,
    )


def running_processes(server: StartedServer) -> list[Process]:
    """The live processes that belong to a started server.

    As long as one is left, the system gives its session's number to no other process. So a process with that number
    and another start time means that none is left.
    """
    if server.boot_id != boot_id() or server.pid_namespace != pid_namespace() or not server.start_ticks:
        return []
    leader = read_process(server.pid)
    if leader and leader.start_ticks != server.start_ticks:
        return []
    members = [p for p in list_processes() if server.process_group in {p.group, p.session} and not p.has_ended]
    return members if leader else [p for p in members if writes_to(p.pid, server.log_path)]


def stop_processes(server: StartedServer, grace_s: float) -> None:
    """SIGTERM to all processes of a server, SIGKILL to what is left after `grace_s`, and the container's end.

    An interruption shortens the grace; it does not keep the processes.
    """
    try:
        for process in running_processes(server):
            send_signal(process, signal.SIGTERM)
        wait_until_gone(server, grace_s)
    finally:
        _kill(server)
        _kill_container(server)


def default_state_path() -> Path:
    """`$XDG_STATE_HOME/maitre/servers`, or the same below `~/.local/state`."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "maitre" / "servers"


def without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """A command line with keys and tokens replaced by ***."""
    shown: list[str] = []
    for word in words:
        is_value = bool(shown) and re.fullmatch(r"--(?:api[-_]key|hf[-_]token)", shown[-1]) is not None
        masked = re.sub(r"^(--(?:api[-_]key|hf[-_]token)|\w*(?:KEY|TOKEN|SECRET|PASSWORD)\w*)=.*", r"\1=***", word)
        shown.append("***" if is_value else masked)
    return tuple(shown)


def _is_starter_alive(server: StartedServer) -> bool:
    if server.boot_id != boot_id():
        return False
    if server.pid_namespace != pid_namespace():
        return True  # cannot be seen from here
    starter = read_process(server.starter_pid)
    return starter is not None and not starter.has_ended and starter.start_ticks == server.starter_start_ticks


def wait_until_gone(server: StartedServer, timeout_s: float) -> bool:
    """Wait for the end of all processes of a server; False when time is up."""
    deadline = time.monotonic() + timeout_s
    while running_processes(server):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def _kill(server: StartedServer) -> None:
    deadline = time.monotonic() + KILL_WAIT_S
    while (left := running_processes(server)) and time.monotonic() < deadline:
        for process in left:
            send_signal(process, signal.SIGKILL)
        wait_until_gone(server, 0.2)


def _kill_container(server: StartedServer) -> None:
    """End the container by the id that it was given: its processes are none of ours."""
    try:
        identity = Path(server.container_id_file or "").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return
    if re.fullmatch(r"[0-9a-f]{12,64}", identity):
        with suppress(OSError, subprocess.SubprocessError):
            words = [*server.container_tool, "kill", identity]
            subprocess.run(words, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=30)  # noqa: S603


def _write_record(folder: Path, server: StartedServer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{server.id}.part"
    draft.write_text(server.model_dump_json(indent=1), "utf-8")
    draft.replace(folder / f"{server.id}.json")
