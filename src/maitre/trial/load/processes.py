"""More than one process, where one core does not follow: the same start, the requests dealt round robin, one result."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from maitre.errors import MaitreError, SystemFailure
from maitre.trial.load.client import LEAD_S, Load, Progress, check_reachable, drive
from maitre.trial.load.health import ClientHealth
from maitre.trial.load.outcome import LoadProgress, LoadResult
from maitre.trial.load.plan import LoadPlan
from maitre.trial.load.request import Target

TOKENS_PER_S = 15_000
"""Streamed tokens/s that one process follows with room to spare (benchmarks/load_generator.py)."""

_SPAWN = multiprocessing.get_context("spawn")


def count_processes(plan: LoadPlan, expected_tokens_per_s: float) -> int:
    """Processes that a plan needs at an expected output rate: one without streaming, and never more than cores."""
    if not plan.is_streaming:
        return 1
    wanted = math.ceil(expected_tokens_per_s / TOKENS_PER_S)
    return max(1, min(wanted, os.cpu_count() or 1, len(plan.requests), plan.max_concurrency or wanted))


def drive_in_processes(
    plan: LoadPlan, base_url: str, model: str, *, num_processes: int, api_key: str | None = None, timeout_s: float,
    on_progress: Progress | None = None,
) -> LoadResult:  # fmt: skip
    """Send all requests of a plan from several processes; with one, the same as `drive`.

    Args:
        plan: what to send.
        base_url: the server's, such as http://localhost:8000.
        model: name that the server serves it under.
        num_processes: see `count_processes`; at most as many as requests and as `max_concurrency`.
        api_key: sent as a bearer token.
        timeout_s: for each request, from sending to its last token.
        on_progress: called in this process, with the sum over all processes; True ends the run.

    Raises:
        UsageError: the address is none.
        SystemFailure: the server cannot be reached, or a process died.
    """
    if num_processes <= 1:
        return drive(plan, base_url, model, api_key=api_key, timeout_s=timeout_s, on_progress=on_progress)
    target = Target(base_url, model, api_key)
    check_reachable(target)
    shares = plan.deal(num_processes)
    with _started_children(len(shares)) as connections:
        for connection, share in zip(connections, shares, strict=True):
            _send(connection, (share, target, timeout_s))
        for connection in connections:
            _receive(connection)  # it is ready
        start_s = time.monotonic() + LEAD_S
        for connection in connections:
            _send(connection, start_s)
        return _merge(_collect(connections, on_progress))


@contextlib.contextmanager
def _started_children(num: int) -> Iterator[list[Connection]]:
    """Children that wait for their share; all of them end with the block."""
    children: list[SpawnProcess] = []
    connections: list[Connection] = []
    try:
        for _ in range(num):
            ours, theirs = _SPAWN.Pipe()
            child = _SPAWN.Process(target=_drive_share, args=(theirs,), daemon=True, name="maitre-load")
            with _interrupts_ignored():
                child.start()
            theirs.close()
            children.append(child)
            connections.append(ours)
        yield connections
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.join()
        for connection in connections:
            connection.close()


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Children started here inherit that Ctrl-C is not for them: the parent ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _drive_share(connection: Connection) -> None:
    """A child's life: take a share, say ready, wait for the start, send, report. A parent that is gone ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def tell(progress: LoadProgress) -> bool:
        connection.send(progress)
        return connection.poll()  # whatever the parent says now means that it has seen enough

    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        load = Load(*connection.recv())
        connection.send(None)
        connection.send(load.run(connection.recv(), tell))


def _collect(connections: Sequence[Connection], on_progress: Progress | None) -> list[LoadResult]:
    """The results of all children, with their progress told on the way, until the answer is to end the run."""
    progress: dict[Connection, LoadProgress] = {}
    results: dict[Connection, LoadResult] = {}
    is_enough = False
    while len(results) < len(connections):
        for connection in wait([one for one in connections if one not in results]):
            assert isinstance(connection, Connection)
            message = _receive(connection)
            if isinstance(message, LoadResult):
                results[connection] = message
            elif isinstance(message, LoadProgress):
                progress[connection] = message
        if on_progress is None or is_enough or len(progress) < len(connections):
            continue
        if is_enough := bool(on_progress(_sum(list(progress.values())))):
            _end(connection for connection in connections if connection not in results)
    return [results[connection] for connection in connections]


def _end(connections: Iterable[Connection]) -> None:
    """Have children drop their requests; one that has ended by itself does not hear it."""
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.send(None)


def _send(connection: Connection, message: object) -> None:
    try:
        connection.send(message)
    except OSError:
        raise _died() from None


def _receive(connection: Connection) -> object:
    try:
        message: object = connection.recv()
    except (EOFError, OSError):
        raise _died() from None
    return message


def _died() -> MaitreError:
    return SystemFailure("a process of the load generator died", "is there enough memory for the prompts?")


def _sum(parts: Sequence[LoadProgress]) -> LoadProgress:
    return LoadProgress(
        num_requests=sum(part.num_requests for part in parts),
        num_sent=sum(part.num_sent for part in parts),
        num_done=sum(part.num_done for part in parts),
        num_failed=sum(part.num_failed for part in parts),
        elapsed_s=max(part.elapsed_s for part in parts),
    )


def _merge(parts: Sequence[LoadResult]) -> LoadResult:
    outcomes = sorted((outcome for part in parts for outcome in part.outcomes), key=lambda outcome: outcome.index)
    health = ClientHealth.worst_of([part.health for part in parts])
    return LoadResult(tuple(outcomes), health, parts[0].start_s, cut_short=any(part.cut_short for part in parts))
