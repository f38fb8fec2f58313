"""A vLLM server for one or more trials: started, watched, and stopped with everything that it started."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from maitre.errors import SystemFailure, UsageError
from maitre.trial.command import ServeCommand
from maitre.trial.probe import Probe, describe_listener, get, probe
from maitre.trial.registry import ServerRegistry
from maitre.trial.started import STOP_GRACE_S, StartedProcess, start_process
from maitre.vllm.failures import ServerFailure, classify_failure
from maitre.vllm.log_text import log_lines

__all__ = ["STOP_GRACE_S", "Server", "ServerError", "start_server"]


class ServerError(SystemFailure):
    """A server did not start, or died; `failure` says why."""

    def __init__(self, failure: ServerFailure, log_path: Path | None = None) -> None:
        super().__init__(failure.message + (f" (log: {log_path})" if log_path else ""), failure.remedy)
        self.failure = failure


class Server:
    """A server that this process started. As a context it is stopped at the end, whatever happens."""

    def __init__(self, command: ServeCommand, started: StartedProcess) -> None:
        self.command = command
        self.base_url = command.base_url
        self.log_path = started.log_path
        self.pid = started.pid
        self.probe: Probe | None = None
        """What the server said of itself when it became ready."""
        self._started = started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def model(self) -> str:
        """The name that requests use."""
        return self.probe.model_names[0] if self.probe else self.command.served_model_name or ""

    @property
    def api_key(self) -> str | None:
        """What the server asks for."""
        return self.command.api_key

    @property
    def exit_code(self) -> int | None:
        """None while the server's first process runs; negative when a signal ended it."""
        return self._started.exit_code

    def is_alive(self) -> bool:
        """Whether the server's first process runs."""
        return self.exit_code is None

    def last_lines(self, n: int) -> list[str]:
        """The last `n` lines that the server wrote, without colours; blank ones left out."""
        return [line for line in log_lines(self._started.log_text()) if line.strip()][-n:] if n > 0 else []

    def failure(self, *, timed_out: bool = False) -> ServerFailure:
        """Why the server failed, from its log and exit code.

        Args:
            timed_out: the caller has given up waiting for an answer.
        """
        return classify_failure(self._started.log_text(), self.exit_code, timed_out=timed_out)

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """End the server and all that it started: SIGTERM, and SIGKILL after `grace_s` seconds. May be called again.

        Raises:
            SystemFailure: a process of the server cannot be ended.
        """
        self._started.stop(grace_s)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until the server answers `/health` and names its models.

        Raises:
            ServerError: it ended, or was not ready in time.
            UsageError: what answers is not vLLM, or asks for a key that the command does not show.
        """
        deadline, pause_s = time.monotonic() + timeout_s, 0.05
        while (left_s := deadline - time.monotonic()) > 0:
            if self._started.wait(0) is not None:
                raise ServerError(self.failure(), self.log_path)
            self.probe = self._ask(min(5.0, left_s))
            if self.probe and self.is_alive():
                return
            self._started.wait(min(pause_s, left_s))  # wakes at once when the process ends
            pause_s = min(1.5 * pause_s, 1.0)
        raise ServerError(self.failure(timed_out=True), self.log_path)

    def _ask(self, timeout_s: float) -> Probe | None:
        try:
            health = get(f"{self.base_url}/health", timeout_s=timeout_s)
            return None if health.status >= 500 else probe(self.base_url, self.command.api_key, timeout_s=timeout_s)
        except SystemFailure:
            return None


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
    server = _launch(command, program, variables, log_path, registry)
    try:
        server.wait_until_ready(ready_timeout_s)
    except BaseException:
        server.stop()
        raise
    return server


def _launch(
    command: ServeCommand, program: str, variables: Mapping[str, str], log_path: Path, registry: ServerRegistry
) -> Server:
    server_id = uuid.uuid4().hex[:12]
    if command.launcher == "container":
        command = command.with_container_id_file(str(registry.folder.resolve() / f"{server_id}.cid"))
    started = start_process(
        [program, *command.words[1:]],
        variables,
        log_path=log_path,
        registry=registry,
        server_id=server_id,
        base_url=command.base_url,
        container_tool=command.container_tool,
        container_id_file=command.container_id_file,
    )
    return Server(command, started)


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
