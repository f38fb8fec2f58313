"""What a simulated server did, step by step, with the state that its metrics show after each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from conditions.hosts import Host
from maitre.records import Workload
from maitre.simulator.replay import Replay, replay_arrivals, replay_at_once
from maitre.simulator.step_time import StepTime

FloatArray = NDArray[np.float64]
STEP_SD = 0.03
"""Relative spread of a step's time."""
_NUM_FACTORS = 2**16


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """n requests that a server answered in m steps. Times are seconds since the first moment of the traffic."""

    host: Host
    workload: Workload
    replay: Replay
    step_end_s: FloatArray
    """Shape (m,), when the output of each step was there."""
    arrival_s: FloatArray
    """Shape (n,)."""
    scheduled_s: FloatArray
    """Shape (n,), the start of the first step of each request."""
    running: NDArray[np.int64]
    """Shape (m,), requests that the gauges show once the output of a step is processed, as are the next two."""
    waiting: NDArray[np.int64]
    kv_usage: FloatArray
    """0 to 1."""
    is_idle_after: NDArray[np.bool_]
    """Shape (m,), whether the server has nothing to do behind the step."""

    @property
    def step_start_s(self) -> FloatArray:
        """When each step could begin at the earliest: at the end of the one before, shape (m,)."""
        return np.concatenate([[0.0], self.step_end_s[:-1]])


def serve_arrivals(host: Host, workload: Workload, generator: np.random.Generator) -> Served:
    """Serve requests that come at their own times.

    Args:
        host: the server.
        workload: with arrival times.
        generator: of the step times' noise.

    Raises:
        DoesNotFitError: a request is larger than the KV pool.
    """
    noisy = _NoisyStepTime(host.step_time, generator)
    replay = replay_arrivals(workload, host.rules, noisy)  # type: ignore[arg-type]  # asked for the two times only
    assert replay.step_end_s is not None
    assert workload.arrival_s is not None
    return _served(host, workload, replay, replay.step_end_s, workload.arrival_s, None)


def serve_clients(host: Host, workload: Workload, num_clients: int, generator: np.random.Generator) -> Served:
    """Serve clients that send their next request as soon as the last one is answered.

    A server that holds at most so many requests, and always finds another one waiting, schedules the same steps.

    Args:
        host: the server.
        workload: more requests than clients; cut where the first client finds no further one.
        num_clients: requests in the server at any time.
        generator: of the step times' noise.

    Raises:
        DoesNotFitError: a request is larger than the KV pool.
    """
    slots = min(num_clients, host.server.max_num_seqs)
    replay = replay_at_once(workload, replace(host.rules, max_num_seqs=slots))
    seconds = replay.steps_s(host.step_time)
    step_end_s = np.cumsum(seconds * np.resize(_factors(generator), len(seconds)))
    answered_s = np.sort(step_end_s[replay.last_token_step])
    arrival_s = np.concatenate([np.zeros(num_clients), answered_s])[: workload.num_requests]
    return _served(host, workload, replay, step_end_s, arrival_s, num_clients)


def last_arrival_s(served: Served) -> float:
    """Until when the server is served as the story says: behind the last arrival it only drains."""
    return float(served.arrival_s[-1])


def _served(
    host: Host,
    workload: Workload,
    replay: Replay,
    step_end_s: FloatArray,
    arrival_s: FloatArray,
    num_clients: int | None,
) -> Served:
    num_steps = replay.num_steps
    ended = np.bincount(replay.last_token_step, minlength=num_steps)
    num_arrived = np.searchsorted(np.sort(arrival_s), step_end_s, side="right")
    is_idle = num_arrived <= np.cumsum(ended)
    is_idle &= num_clients is None
    is_idle[-1] = True
    # With async scheduling the next step is scheduled before the output of this one is processed.
    after = np.minimum(np.arange(num_steps) + host.rules.in_flight_steps - 1, num_steps - 1)
    columns = replay.columns
    running = np.where(is_idle, 0, np.maximum(columns["num_running"][after] - ended, 0))
    waiting = columns["num_waiting"][after] if num_clients is None else num_clients - running - ended
    blocks = -(-(workload.prompt_tokens + workload.output_tokens - 1) // host.server.block_size)
    freed = np.bincount(replay.last_token_step, weights=blocks, minlength=num_steps)
    usable = host.rules.num_usable_blocks
    free = np.minimum(columns["num_free_blocks"][after] + freed, usable)
    start_s = np.concatenate([[0.0], step_end_s[:-1]])
    return Served(
        host=host,
        workload=workload,
        replay=replay,
        step_end_s=step_end_s,
        arrival_s=arrival_s,
        scheduled_s=np.maximum(start_s[replay.first_scheduled_step], arrival_s),
        running=running,
        waiting=np.where(is_idle, 0, np.maximum(waiting, 0)),
        kv_usage=np.where(is_idle, 0.0, 1 - free / usable),
        is_idle_after=is_idle,
    )


class _NoisyStepTime:
    """The two methods of `StepTime` that a replay calls, with noise."""

    def __init__(self, step_time: StepTime, generator: np.random.Generator) -> None:
        self._factor: Callable[[], float] = cycle(_factors(generator).tolist()).__next__
        self._step_time = step_time

    def decode_s(self, num_decodes: int, context_tokens: int) -> float:
        return self._factor() * self._step_time.decode_s(num_decodes, context_tokens)

    def mixed_s(self, num_decodes: int, context_tokens: int, prefill_tokens: int, pairs: int) -> float:
        return self._factor() * self._step_time.mixed_s(num_decodes, context_tokens, prefill_tokens, pairs)


def _factors(generator: np.random.Generator) -> FloatArray:
    return generator.lognormal(0.0, STEP_SD, size=_NUM_FACTORS)
