"""One process that sends a plan's requests on time and follows each to its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import aiohttp

from maitre.errors import SystemFailure, UsageError
from maitre.trial.load.health import ClientHealth, HealthMeter
from maitre.trial.load.interrupts import interrupts_deferred
from maitre.trial.load.outcome import LoadProgress, LoadResult, RequestOutcome
from maitre.trial.load.plan import LoadPlan
from maitre.trial.load.request import Exchange, Target

PROGRESS_S = 0.25
"""How often progress is told."""
REACH_S = 10.0
"""How long the server may take for its first sign of life."""
LEAD_S = 0.05
"""From the decision to start until the start."""
KEEPALIVE_S = 2.0
"""An idle connection is closed before the server does it: uvicorn waits 5 s (`timeout_keep_alive`), and a request that
meets a closing connection is lost."""
STARTS_AT_ONCE = 8
"""Requests that start before the event loop looks at the others: a thousand in one go stop it for half a second."""
SWITCH_S = 0.0005
"""How long another thread may keep the event loop waiting. With Python's own 5 ms, one that computed for 50 ms a second
made the loop 6.0 ms late (p99) instead of 2.1; with this, 2.3 (2 cores, real-time priority)."""
SPARE_FILES = 64
"""Open files besides the connections."""

Progress = Callable[[LoadProgress], bool | None]
"""Is told how far a run is; True ends it."""


def drive(
    plan: LoadPlan, base_url: str, model: str, *, api_key: str | None = None, timeout_s: float,
    on_progress: Progress | None = None,
) -> LoadResult:  # fmt: skip
    """Send all requests of a plan from this process and wait for the last answer, or until `on_progress` ends the run.

    A run that is ended drops its connections, upon which vLLM aborts what is under way.

    Args:
        plan: what to send.
        base_url: the server's, such as http://localhost:8000.
        model: name that the server serves it under.
        api_key: sent as a bearer token.
        timeout_s: for each request, from sending to its last token. All at once, the last request waits for the others.
        on_progress: called about four times a second, in another thread, so that it may take its time; and once more
            at the end. What it raises ends the run, too.

    Raises:
        UsageError: the address is none.
        SystemFailure: the server cannot be reached. After that, whatever goes wrong is in the result.
    """
    target = Target(base_url, model, api_key)
    check_reachable(target)
    load = Load(plan, target, timeout_s)
    return load.run(time.monotonic() + LEAD_S, on_progress)


def check_reachable(target: Target) -> None:
    """Ask for the list of models; any answer will do.

    Raises:
        UsageError: the address is none.
        SystemFailure: there is no answer.
    """

    async def ask() -> None:
        timeout = aiohttp.ClientTimeout(total=REACH_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(target.url("/v1/models")):
            pass

    try:
        asyncio.run(ask())
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        raise UsageError(f"'{target.base_url}' is no address of a server", "write http://HOST:PORT") from None
    except (aiohttp.ClientError, OSError) as error:
        what = f"no answer in {REACH_S:g} s" if isinstance(error, TimeoutError) else error
        raise SystemFailure(f"{target.base_url} cannot be reached: {what}", "is the server up?") from None


class Load:
    """A plan that is ready to be sent: everything is encoded before the start."""

    def __init__(self, plan: LoadPlan, target: Target, timeout_s: float) -> None:
        self._plan, self._target, self._timeout_s = plan, target, timeout_s
        self._bodies = [plan.body(request, target.model) for request in plan.requests]
        self._url = target.url("/v1/completions")
        self._outcomes: list[RequestOutcome] = []
        self._num_sent = self._num_failed = 0
        self._health: ClientHealth | None = None
        self._start_s = 0.0

    def run(self, start_s: float, on_progress: Progress | None = None) -> LoadResult:
        """Send everything; time zero is `start_s` on the monotonic clock."""
        self._start_s = start_s
        _allow_open_files(len(self._plan.requests) + SPARE_FILES)
        with _garbage_left_alone(), _quick_thread_switches():
            asyncio.run(self._run(on_progress))
        if on_progress is not None:
            on_progress(self._progress())
        assert self._health is not None
        outcomes = sorted(self._outcomes, key=lambda outcome: outcome.index)
        is_cut = len(outcomes) < len(self._bodies)
        return LoadResult(tuple(outcomes), self._health, self._start_s, cut_short=is_cut)

    async def _run(self, on_progress: Progress | None) -> None:
        """Leaves the result in the fields: what a main task returns, asyncio.run formats as text (Python 3.11)."""
        connector = self._connector()
        async with aiohttp.ClientSession(
            connector=connector,
            headers=self._target.headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # asyncio.timeout is cheaper a read
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session:
            await asyncio.sleep(self._start_s - time.monotonic())
            meter = HealthMeter()
            await _first_to_end(self._send_all(session), meter.tick(), self._tell(on_progress))
            self._health = meter.health(is_streaming=self._plan.is_streaming)

    def _connector(self) -> aiohttp.TCPConnector:
        """Fresh connections without streaming: nobody watches their time, and none can meet the server closing it."""
        if self._plan.is_streaming:
            return aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=None)
        return aiohttp.TCPConnector(limit=0, force_close=True, ttl_dns_cache=None)

    async def _send_all(self, session: aiohttp.ClientSession) -> None:
        if self._plan.arrival_s is not None:
            await self._send_on_time(session)
        else:
            await self._send_in_turn(session)

    async def _send_on_time(self, session: aiohttp.ClientSession) -> None:
        """Open loop: the clock alone decides, and no answer is waited for."""
        order = sorted(range(len(self._bodies)), key=self._plan.intended_s)
        async with asyncio.TaskGroup() as tasks:
            for position in order:
                intended_s = self._plan.intended_s(position)
                if (wait_s := intended_s - self._now()) > 0:
                    await asyncio.sleep(wait_s)
                tasks.create_task(self._send(session, position, intended_s))

    async def _send_in_turn(self, session: aiohttp.ClientSession) -> None:
        """Closed loop: each of the places sends the next request when its last one has ended."""
        positions = iter(range(len(self._bodies)))
        num_places = min(self._plan.max_concurrency or len(self._bodies), len(self._bodies))

        async def fill_place() -> None:
            free_s = 0.0
            for position in positions:
                await self._send(session, position, free_s)
                free_s = self._now()

        async with asyncio.TaskGroup() as tasks:
            for place in range(num_places):
                tasks.create_task(fill_place())
                if place % STARTS_AT_ONCE == STARTS_AT_ONCE - 1:
                    await asyncio.sleep(0)

    async def _send(self, session: aiohttp.ClientSession, position: int, intended_s: float) -> None:
        request = self._plan.requests[position]
        exchange = Exchange(request, self._now, is_streaming=self._plan.is_streaming)
        self._num_sent += 1
        outcome = await exchange.run(
            session, self._url, self._bodies[position], self._plan.request_id(request),
            intended_s=intended_s, timeout_s=self._timeout_s,
        )  # fmt: skip
        self._outcomes.append(outcome)
        self._num_failed += outcome.error_kind is not None

    async def _tell(self, on_progress: Progress | None) -> None:
        """Until it is answered that the run should end."""
        is_enough = False
        while not is_enough:
            await asyncio.sleep(PROGRESS_S)
            if on_progress is not None:
                is_enough = bool(await asyncio.to_thread(on_progress, self._progress()))

    def _progress(self) -> LoadProgress:
        num_done = len(self._outcomes)
        return LoadProgress(len(self._bodies), self._num_sent, num_done, self._num_failed, self._now())

    def _now(self) -> float:
        """Seconds from the run's start."""
        return time.monotonic() - self._start_s


async def _first_to_end(*work: Coroutine[Any, Any, None]) -> None:
    """Run all at once until one has ended; the others are cancelled."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _garbage_left_alone() -> Iterator[None]:
    """Keep the collector off what exists already: looking through all prompts would stop the event loop.

    The connections of the run are collected at its end, with interrupts deferred: their destructors would swallow one.
    """
    with interrupts_deferred():
        gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        with interrupts_deferred():
            gc.collect()


@contextlib.contextmanager
def _quick_thread_switches() -> Iterator[None]:
    """Let the event loop have its turn while `on_progress` computes in another thread."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _allow_open_files(num_files: int) -> None:
    """Raise the soft limit of open files where the hard limit allows; else connections fail, and the result says so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
