"""A command that this process starts and ends with all that it started: recorded before its program runs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from maitre.errors import SystemFailure
from maitre.trial.processes import read_process, unwind_on_termination
from maitre.trial.registry import (
    ServerRegistry,
    StartedServer,
    describe_started,
    running_processes,
    stop_processes,
    wait_until_gone,
)

STOP_GRACE_S = 20.0
"""Between SIGTERM and SIGKILL; vLLM needs a few seconds to end its engine and to give the GPU's memory back."""

SETTLE_S = 2.0
"""How long what the first process has started may write after its end."""

_MAX_LOG_BYTES = 16 * 2**20

_GATE = 'read -r go && exec "$@" </dev/null'
"""Waits for a line before it becomes the command, so that nothing runs that is not yet recorded; ends with maitre."""


class StartedProcess:
    """A command that runs in a session of its own. As a context it is ended at the end, whatever happens."""

    def __init__(
        self, process: subprocess.Popen[bytes], record: StartedServer, registry: ServerRegistry, log_start: int,
        stack: ExitStack,
    ) -> None:  # fmt: skip
        self.log_path = Path(record.log_path)
        self.pid = process.pid
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
        """None while the first process runs; negative when a signal ended it."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end of the first process, and for the last words of what it started.

        Returns:
            The exit code; None when time is up.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
            wait_until_gone(self._record, SETTLE_S)
        return self.exit_code

    def log_text(self) -> str:
        """What it has written so far, the last 16 MiB of it."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(self._log_start, file.seek(0, os.SEEK_END) - _MAX_LOG_BYTES))
                return file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """End all of it: SIGTERM, and SIGKILL after `grace_s` seconds. May be called again.

        Raises:
            SystemFailure: a process cannot be ended.
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
            raise SystemFailure(f"the processes {pids} do not end", "see whether a GPU or a disk hangs")


def start_process(
    words: Sequence[str],
    variables: Mapping[str, str],
    *,
    log_path: Path,
    registry: ServerRegistry,
    server_id: str,
    base_url: str = "",
    container_tool: Sequence[str] = (),
    container_id_file: str | None = None,
) -> StartedProcess:
    """Start a command in a session of its own, reading nothing, its output appended to a file.

    Until it is stopped, SIGTERM and SIGHUP unwind this process like Ctrl-C, so that it is stopped on the way out.

    Args:
        words: the command; the first is a program's path.
        variables: all of its environment.
        log_path: where its output goes.
        registry: where it is recorded.
        server_id: under which it is recorded.
        base_url: where it will answer, if it is a server.
        container_tool: `docker` with its own options, if the command runs a container.
        container_id_file: where the container's id will stand.

    Raises:
        SystemFailure: the disk refuses.
    """
    with ExitStack() as stack:
        stack.enter_context(unwind_on_termination())
        process, log_start = _spawn(words, variables, log_path)
        try:
            record = describe_started(
                process.pid,
                words,
                server_id=server_id,
                folder=registry.folder,
                base_url=base_url,
                log_path=log_path,
                container_tool=container_tool,
                container_id_file=container_id_file,
            )
            registry.add(record)
            _open_gate(process)
        except BaseException:
            process.kill()
            with process:  # closes its pipe and collects it
                raise
        return StartedProcess(process, record, registry, log_start, stack.pop_all())


def _spawn(words: Sequence[str], variables: Mapping[str, str], log_path: Path) -> tuple[subprocess.Popen[bytes], int]:
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
