"""Processes as Linux shows them in `/proc`, signals that cannot hit a process with a recycled number, and our own."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple


class Process(NamedTuple):
    """One process."""

    pid: int
    state: str
    """`R`, `S`, `D` …; `Z` for one that has ended and waits for its parent."""
    group: int
    session: int
    start_ticks: int
    """When it started, in clock ticks since boot: with the pid, its identity. An `exec` keeps both."""

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self.state in "ZX"


def read_process(pid: int) -> Process | None:
    """One process; None when there is none, or no `/proc` (`proc_pid_stat(5)`)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return None
    state, _, group, session, *rest = text.rpartition(")")[2].split()  # the name before may hold anything
    return Process(pid, state, int(group), int(session), int(rest[15]))


def list_processes() -> Iterator[Process]:
    """All processes of this PID namespace."""
    for path in Path("/proc").glob("[0-9]*"):
        if process := read_process(int(path.name)):
            yield process


def writes_to(pid: int, path: str) -> bool:
    """Whether a process's standard output or error goes to a file."""
    for number in (1, 2):
        with suppress(OSError):
            if str(Path(f"/proc/{pid}/fd/{number}").readlink()).removesuffix(" (deleted)") == path:
                return True
    return False


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal this very process; nothing happens when it has ended, or belongs to another user."""
    with suppress(OSError):
        try:
            handle = os.pidfd_open(process.pid)
        except OSError as error:
            if error.errno != errno.ESRCH:  # Linux before 5.3, or a container that forbids the call
                os.kill(process.pid, number)
            return
        try:
            now = read_process(process.pid)
            if now and now.start_ticks == process.start_ticks:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def boot_id() -> str:
    """Changes with every start of the machine; empty where there is no `/proc`."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Changes with every container; empty where there is no `/proc`."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


@contextmanager
def unwind_on_termination() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit, unless the program has a handler of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _exit_on_signal)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _exit_on_signal(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
