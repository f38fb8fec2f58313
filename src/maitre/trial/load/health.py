"""The load generator's own condition: a client that is busy or late sees latencies that the server did not cause."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from maitre.records import Record
from maitre.units import format_seconds

TICK_S = 0.01
MAX_LAG_P99_S = 0.005
"""With streaming: latencies are promised to be true to 5 ms."""
MAX_SENDING_LAG_P99_S = 0.1
"""Without: the client only has to send in time, and times are the server's own."""
MAX_CPU_SHARE = 0.9
"""Beyond this, one core has no room for a burst."""


class ClientHealth(Record):
    """How busy and how late the client was; of several processes, the worst of each figure."""

    num_processes: int = 1
    is_streaming: bool = True
    """Whether the client watched the tokens come."""
    cpu_share: float
    """CPU time over wall time of one process's event loop, in cores."""
    lag_p50_s: float
    """How late the event loop came to a tick that was due every 10 ms. Up to 1 ms of it is the timer's resolution."""
    lag_p99_s: float
    lag_max_s: float

    @classmethod
    def of(cls, cpu_s: float, wall_s: float, lags_s: Sequence[float], *, is_streaming: bool = True) -> Self:
        """From the CPU and wall time of a run and the lateness of all its ticks, at least one."""
        p50, p99, largest = np.percentile(lags_s, [50, 99, 100]).tolist()
        return cls(is_streaming=is_streaming, cpu_share=cpu_s / wall_s, lag_p50_s=p50, lag_p99_s=p99, lag_max_s=largest)

    @classmethod
    def worst_of(cls, parts: Sequence[ClientHealth]) -> Self:
        """The health of several processes that ran at the same time."""
        return cls(
            num_processes=sum(part.num_processes for part in parts),
            is_streaming=any(part.is_streaming for part in parts),
            cpu_share=max(part.cpu_share for part in parts),
            lag_p50_s=max(part.lag_p50_s for part in parts),
            lag_p99_s=max(part.lag_p99_s for part in parts),
            lag_max_s=max(part.lag_max_s for part in parts),
        )

    @property
    def is_spoiled(self) -> bool:
        """Whether the client was part of what it measured."""
        return bool(self.spoiled_by)

    @property
    def spoiled_by(self) -> str:
        """Why the client's times cannot be trusted, in words; empty when they can."""
        reasons = []
        max_lag_s = MAX_LAG_P99_S if self.is_streaming else MAX_SENDING_LAG_P99_S
        if self.lag_p99_s > max_lag_s:
            lag, limit = format_seconds(self.lag_p99_s), format_seconds(max_lag_s)
            reasons.append(f"its event loop was {lag} late (p99; {limit} is the limit)")
        if self.cpu_share > MAX_CPU_SHARE:
            reasons.append(f"it used {self.cpu_share:.0%} of a core ({MAX_CPU_SHARE:.0%} is the limit)")
        return "the load generator could not keep up: " + " and ".join(reasons) if reasons else ""


class HealthMeter:
    """Measures from its making on; `tick` has to run as a task beside the work, in the thread that made the meter."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._start_s, self._start_cpu_s = clock(), cpu_clock()
        self._due_s = self._start_s + TICK_S
        self._lags_s: list[float] = []

    async def tick(self) -> None:
        """Note how late each tick is, until cancelled."""
        while True:
            await asyncio.sleep(max(0.0, self._due_s - self._clock()))
            self.note()

    def note(self) -> None:
        """Note all ticks that are due: a loop that stood still missed many, and each of them counts."""
        now_s = self._clock()
        while self._due_s <= now_s:
            self._lags_s.append(now_s - self._due_s)
            self._due_s += TICK_S

    def health(self, *, is_streaming: bool = True) -> ClientHealth:
        """The condition so far, of a client that watches tokens come or only sends."""
        self.note()
        wall_s = max(self._clock() - self._start_s, 1e-9)
        cpu_s = self._cpu_clock() - self._start_cpu_s
        return ClientHealth.of(cpu_s, wall_s, self._lags_s or [0.0], is_streaming=is_streaming)
