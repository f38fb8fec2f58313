"""A vLLM server for one or more trials: started, watched, and stopped with everything that it started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from maitre.errors import SystemFailure, UsageError
from maitre.trial.command import ServeCommand
from maitre.trial.probe import Probe, describe_listener, get, probe
from maitre.trial.processes import read_process, unwind_on_termination
from maitre.trial.registry import (
    ServerRegistry,
    StartedServer,
    describe_started,
    running_processes,
    stop_processes,
    wait_until_gone,
)
from maitre.vllm.failures import ServerFailure, classify_failure
from maitre.vllm.log_text import log_lines

STOP_GRACE_S = 20.0
"""Between SIGTERM and SIGKILL; vLLM needs a few seconds to end its engine and to give the GPU's memory back."""

_MAX_LOG_BYTES = 16 * 2**20
_SETTLE_S = 2.0
"""How long the engine may write its traceback after the server's first process has ended."""

_GATE = 'read -r go && exec "$@" </dev/null'
"""Waits for a line before it becomes the server, so that no server runs that is not yet recorded; ends with maitre."""


class ServerError(SystemFailure):
    """A server did not start, or died; `failure` says why."""

    def __init__(self, failure: ServerFailure, log_path: Path | None = None) -> None:
        super().__init__(failure.message + (f" (log: {log_path})" if log_path else ""), failure.remedy)
        self.failure = failure


class Server:
    """A server that this process started. As a context it is stopped at the end, whatever happens."""

    def __init__(
        self,
        command: ServeCommand,
        process: subprocess.Popen[bytes],
        record: StartedServer,
        registry: ServerRegistry,
        *,
        log_start: int,
        stack: ExitStack,
    ) -> None:
        self.command = command
        self.base_url = command.base_url
        self.log_path = Path(record.log_path)
        self.pid = process.pid
        self.probe: Probe | None = None
        """What the server said of itself when it became ready."""
        self._process = process
        self._record = record
        self._registry = registry
        self._log_start = log_start
        self._stack = stack

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def exit_code(self) -> int | None:
        """None while the server's first process runs; negative when a signal ended it."""
        return self._process.poll()

    def is_alive(self) -> bool:
        """Whether the server's first process runs."""
        return self.exit_code is None

    def last_lines(self, n: int) -> list[str]:
        """The last `n` lines that the server wrote, without colours; blank ones left out."""
        return [line for line in log_lines(self._log_text()) if line.strip()][-n:] if n > 0 else []

    def failure(self, *, timed_out: bool = False) -> ServerFailure:
        """Why the server failed, from its log and exit code.

        Args:
            timed_out: the caller has given up waiting for an answer.
        """
        return classify_failure(self._log_text(), self.exit_code, timed_out=timed_out)

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """End the server and all that it started: SIGTERM, and SIGKILL after `grace_s` seconds. May be called again.

        Raises:
            SystemFailure: a process of the server cannot be ended.
        """
        with self._stack:
            try:
                stop_processes(self._record, grace_s)
            finally:
                _reap(self._process, grace_s)
                left = running_processes(self._record)
                if not left:
                    self._registry.remove(self._record)
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            raise SystemFailure(f"the server's processes {pids} do not end", "see whether a GPU or a disk hangs")

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until the server answers `/health` and names its models.

        Raises:
            ServerError: it ended, or was not ready in time.
            UsageError: what answers is not vLLM, or asks for a key that the command does not show.
        """
        deadline, pause_s = time.monotonic() + timeout_s, 0.05
        while (left_s := deadline - time.monotonic()) > 0:
            if not self.is_alive():
                wait_until_gone(self._record, _SETTLE_S)
                raise ServerError(self.failure(), self.log_path)
            self.probe = self._ask(min(5.0, left_s))
            if self.probe and self.is_alive():
                return
            with suppress(subprocess.TimeoutExpired):  # wakes at once when the process ends
                self._process.wait(min(pause_s, left_s))
            pause_s = min(1.5 * pause_s, 1.0)
        raise ServerError(self.failure(timed_out=True), self.log_path)

    def _ask(self, timeout_s: float) -> Probe | None:
        try:
            health = get(f"{self.base_url}/health", timeout_s=timeout_s)
            return None if health.status >= 500 else probe(self.base_url, self.command.api_key, timeout_s=timeout_s)
        except SystemFailure:
            return None

    def _log_text(self) -> str:
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(self._log_start, file.seek(0, os.SEEK_END) - _MAX_LOG_BYTES))
                return file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""


def start_server(
    command: ServeCommand,
    *,
    log_path: Path,
    ready_timeout_s: float,
    registry: ServerRegistry,
    environment: Mapping[str, str] | None = None,
) -> Server:
    """Start a server and wait until it is ready.

    It runs in a session of its own, reads nothing, and writes to `log_path` (appended). Until it is stopped, SIGTERM
    and SIGHUP unwind this process like Ctrl-C, so that the server is stopped on the way out.

    Args:
        command: what to run.
        log_path: where its output goes.
        ready_timeout_s: for loading, compiling and graph capture together.
        registry: where the server is recorded.
        environment: all variables that the process inherits, this process's own by default; those of the command
            come on top.

    Raises:
        ServerError: the port is in use, the server ended, or it was not ready in time; with the reason.
        UsageError: the program does not exist; what answers is not vLLM; a key is missing.
        SystemFailure: the disk refuses.
    """
    variables = dict(os.environ if environment is None else environment) | command.environment
    program = _program(command, variables)
    _refuse_used_port(command)
    stack = ExitStack()
    stack.enter_context(unwind_on_termination())
    try:
        server = _launch(command, program, variables, log_path, registry, stack)
    except BaseException:
        stack.close()
        raise
    try:
        server.wait_until_ready(ready_timeout_s)
    except BaseException:
        server.stop()
        raise
    return server


def _launch(
    command: ServeCommand,
    program: str,
    variables: Mapping[str, str],
    log_path: Path,
    registry: ServerRegistry,
    stack: ExitStack,
) -> Server:
    server_id = uuid.uuid4().hex[:12]
    if command.launcher == "container":
        command = command.with_container_id_file(str(registry.folder.resolve() / f"{server_id}.cid"))
    process, log_start = _spawn([program, *command.words[1:]], variables, log_path)
    try:
        record = describe_started(
            process.pid,
            command.words,
            server_id=server_id,
            folder=registry.folder,
            base_url=command.base_url,
            log_path=log_path,
            container_tool=command.container_tool,
            container_id_file=command.container_id_file,
        )
        registry.add(record)
        _open_gate(process)
    except BaseException:
        process.kill()
        with process:  # closes its pipe and collects it
            raise
    return Server(command, process, record, registry, log_start=log_start, stack=stack)


def _spawn(words: list[str], variables: Mapping[str, str], log_path: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start the gate in a new session; returns it and where in the log it begins."""
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log = log_path.open("ab")
    except OSError as error:
        raise SystemFailure(
            f"{log_path}: cannot be written ({error.strerror})", "check permissions and disk"
        ) from error
    with log:
        log_start = log.tell()
        process = subprocess.Popen(  # noqa: S603 - the user's own command, without a shell of its own
            ["/bin/sh", "-c", _GATE, "sh", *words],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=dict(variables),
            start_new_session=True,
        )
    return process, log_start


def _open_gate(process: subprocess.Popen[bytes]) -> None:
    if process.stdin:
        with suppress(BrokenPipeError), process.stdin as gate:
            gate.write(b"go\n")


def _program(command: ServeCommand, variables: Mapping[str, str]) -> str:
    """The program's path, looked up as the system would."""
    program = shutil.which(command.words[0], path=variables.get("PATH", os.defpath))
    if program is None:
        raise UsageError(f"`{command}`: there is no program '{command.words[0]}'", "check its path, or the PATH")
    return program


def _refuse_used_port(command: ServeCommand) -> None:
    found = describe_listener(command.host, command.port)
    if found:
        raise ServerError(
            ServerFailure(
                code="port-in-use",
                message=f"{found} answers at {command.host}:{command.port} already",
                remedy="stop it, or choose another --port",
                last_lines=(),
            )
        )


def _reap(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Collect the first process; where there is no `/proc`, end its group here."""
    if read_process(os.getpid()) is None and process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
