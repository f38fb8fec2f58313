"""Run a workload through the scheduler: all requests at once, or as they arrive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maitre.records import Workload
from maitre.simulator.block_keys import assign_block_keys
from maitre.simulator.block_pool import BlockPool, KvPool, PrefixCachingBlockPool
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.scheduler import Scheduler
from maitre.simulator.sequence import Sequence
from maitre.simulator.step import Step
from maitre.simulator.step_time import StepTime, step_features


@dataclass(frozen=True, slots=True)
class Replay:
    """What the scheduler did: n requests in m steps. Every request has run to its end."""

    columns: dict[str, NDArray[np.int64]]
    """One array of shape (m,) for each field of `Step`."""
    num_new_tokens: NDArray[np.int64]
    """Shape (m,), tokens that their requests had not reached before: computed or found in the prefix cache, but not
    computed again after a preemption. In sum all prompt and output tokens but each last one, which nobody computes."""
    first_scheduled_step: NDArray[np.int64]
    """Shape (n,), in the order of the workload, as are the next ones."""
    first_token_step: NDArray[np.int64]
    last_token_step: NDArray[np.int64]
    num_preemptions: NDArray[np.int64]
    num_cached_tokens: NDArray[np.int64]
    """Prompt tokens that the prefix cache answered at the first admission."""
    num_recomputed_tokens: NDArray[np.int64]
    """Tokens computed again after preemptions."""
    token_gaps: NDArray[np.int64]
    """Shape (gaps, 2): steps of two consecutive tokens of one request with a preemption or another step between."""
    step_end_s: NDArray[np.float64] | None
    """Shape (m,), seconds since the first arrival; None when no step time was given."""

    @property
    def num_steps(self) -> int:
        """How many steps."""
        return len(self.columns["num_decodes"])

    def features(self, step_time: StepTime) -> NDArray[np.float64]:
        """What each coefficient of a step time is multiplied by, shape (m, 7)."""
        return step_features(self.columns, step_time.knee, step_time.graph_sizes)

    def steps_s(self, step_time: StepTime) -> NDArray[np.float64]:
        """Seconds of every step under a step time, shape (m,)."""
        return step_time.steps_s(self.columns)


def replay_at_once(workload: Workload, rules: SchedulerRules, *, fast_forward: bool = True) -> Replay:
    """All requests are there from the start (closed loop at saturation): the schedule does not depend on time.

    Args:
        workload: its arrival times are not used.
        rules: the scheduler's settings.
        fast_forward: skip the search in steps that are like the one before; the result is the same.

    Raises:
        DoesNotFitError: a request is larger than the KV pool.
    """
    if rules.enable_prefix_caching and workload.prefix_hashes is None:
        plain = _replay_at_once(workload, replace(rules, enable_prefix_caching=False), fast_forward=fast_forward)
        if not plain.num_preemptions.any():
            return plain  # without shared prefixes only a preempted request can hit the cache: its own blocks
    return _replay_at_once(workload, rules, fast_forward=fast_forward)


def _replay_at_once(workload: Workload, rules: SchedulerRules, *, fast_forward: bool) -> Replay:
    sequences = _sequences(workload, rules, arrivals=False)
    scheduler = Scheduler(rules, _pool(rules, sequences))
    for sequence in sequences:
        scheduler.add_request(sequence)
    steps: list[Step] = []
    while scheduler.has_requests:
        step = scheduler.schedule()
        if step is not None:
            steps.append(step)
        if fast_forward:
            for _ in range(scheduler.num_steady_steps):
                step = scheduler.schedule_steady()
                if step is None:
                    break
                steps.append(step)
    return _collect(scheduler, sequences, steps, None)


def replay_arrivals(
    workload: Workload, rules: SchedulerRules, step_time: StepTime, *, fast_forward: bool = True
) -> Replay:
    """Requests come at their arrival times (open loop), so the schedule depends on how long steps take.

    With async scheduling a step is scheduled while the one before it runs, so it knows only who had arrived by then.

    Args:
        workload: with arrival times.
        rules: the scheduler's settings.
        step_time: how long steps take.
        fast_forward: skip the search in steps that are like the one before; the result is the same.

    Raises:
        DoesNotFitError: a request is larger than the KV pool.
    """
    if rules.enable_prefix_caching and workload.prefix_hashes is None:
        plain = replace(rules, enable_prefix_caching=False)
        replay = _replay_arrivals(workload, plain, step_time, fast_forward=fast_forward)
        if not replay.num_preemptions.any():
            return replay  # as for `replay_at_once`
    return _replay_arrivals(workload, rules, step_time, fast_forward=fast_forward)


def _replay_arrivals(workload: Workload, rules: SchedulerRules, step_time: StepTime, *, fast_forward: bool) -> Replay:
    sequences = _sequences(workload, rules, arrivals=True)
    scheduler = Scheduler(rules, _pool(rules, sequences))
    clock = _Clock(step_time, is_async=rules.async_scheduling)
    steps: list[Step] = []
    position = 0
    while position < len(sequences) or scheduler.has_requests:
        if not scheduler.has_requests:
            clock.wait_until(sequences[position].arrival_s)
        while position < len(sequences) and sequences[position].arrival_s <= clock.now:
            scheduler.add_request(sequences[position])
            position += 1
        step = scheduler.schedule()
        if step is None:
            clock.drain()
            continue
        steps.append(step)
        clock.run(step)
        next_arrival_s = sequences[position].arrival_s if position < len(sequences) else np.inf
        num_steady_steps = scheduler.num_steady_steps if fast_forward else 0
        while num_steady_steps and clock.now < next_arrival_s:
            step = scheduler.schedule_steady()
            if step is None:
                break
            steps.append(step)
            clock.run(step)
            num_steady_steps -= 1
    return _collect(scheduler, sequences, steps, np.array(clock.step_end_s))


def replay_joining(
    workload: Workload, rules: SchedulerRules, joins_at_step: NDArray[np.int64], *, fast_forward: bool = True
) -> Replay:
    """Requests come while a server computes, and it is known before which step: the schedule depends on nothing else.

    Args:
        workload: in the order of arrival; its arrival times are not used.
        rules: the scheduler's settings.
        joins_at_step: shape (n,), non-decreasing: how many steps had been scheduled when each request came.
        fast_forward: skip the search in steps that are like the one before; the result is the same.

    Raises:
        DoesNotFitError: a request is larger than the KV pool.
    """
    sequences = _sequences(workload, rules, arrivals=False)
    scheduler = Scheduler(rules, _pool(rules, sequences))
    joins = [*joins_at_step.tolist(), np.inf]
    steps: list[Step] = []
    position = 0
    while position < len(sequences) or scheduler.has_requests:
        while joins[position] <= len(steps) or (position < len(sequences) and not scheduler.has_requests):
            scheduler.add_request(sequences[position])
            position += 1
        step = scheduler.schedule()
        num_steady_steps = scheduler.num_steady_steps if step is not None and fast_forward else 0
        while step is not None:
            steps.append(step)
            if not num_steady_steps or joins[position] <= len(steps):
                break
            num_steady_steps -= 1
            step = scheduler.schedule_steady()
    return _collect(scheduler, sequences, steps, None)


class _Clock:
    """When steps end, and when the next one is scheduled."""

    def __init__(self, step_time: StepTime, *, is_async: bool) -> None:
        self.step_end_s: list[float] = []
        self.now = 0.0
        """When the next step is scheduled: with async scheduling at the end of the step before the last."""
        self._step_time = step_time
        self._is_async = is_async
        self._end = 0.0

    def run(self, step: Step) -> None:
        """The step starts as soon as it is scheduled and the one before it is done."""
        if step.num_prefills:
            duration = self._step_time.mixed_s(step[0], step[1], step[3], step[4])
        else:
            duration = self._step_time.decode_s(step[0], step[1])
        start = max(self._end, self.now)
        self.now = start if self._is_async else start + duration
        self._end = start + duration
        self.step_end_s.append(self._end)

    def drain(self) -> None:
        """Nothing to schedule: wait for the output in flight."""
        self.now = self._end

    def wait_until(self, arrival_s: float) -> None:
        """Nothing to do before the next arrival."""
        self.now = max(self.now, arrival_s)


def _sequences(workload: Workload, rules: SchedulerRules, *, arrivals: bool) -> list[Sequence]:
    keys = assign_block_keys(workload, rules.block_size) if rules.enable_prefix_caching else None
    arrival_s = workload.arrival_s.tolist() if arrivals and workload.arrival_s is not None else None
    return [
        Sequence(i, prompt, output, arrival_s[i] if arrival_s else 0.0, 0, keys[i] if keys else None)
        for i, (prompt, output) in enumerate(
            zip(workload.prompt_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
        )
    ]


def _pool(rules: SchedulerRules, sequences: list[Sequence]) -> KvPool:
    if not rules.enable_prefix_caching:
        return BlockPool(rules.num_usable_blocks, rules.block_size)
    last_keys = [int(s.block_keys[-1]) for s in sequences if s.block_keys is not None and len(s.block_keys)]
    num_keys = max(last_keys, default=-1) + 1
    return PrefixCachingBlockPool(
        rules.num_usable_blocks, rules.block_size, num_keys, reuse_unhashed_first=rules.reuse_unhashed_first
    )


def _collect(
    scheduler: Scheduler, sequences: list[Sequence], steps: list[Step], step_end_s: NDArray[np.float64] | None
) -> Replay:
    num_fields = len(Step._fields)
    numbers = chain.from_iterable(steps)  # np.array takes ten times as long for named tuples
    table = np.fromiter(numbers, np.int64, num_fields * len(steps)).reshape(len(steps), num_fields)

    def column(name: str) -> NDArray[Any]:
        return np.array([getattr(s, name) for s in sequences], dtype=np.int64)

    columns = dict(zip(Step._fields, np.ascontiguousarray(table.T), strict=True))
    num_new_tokens = columns["num_decodes"] + columns["prefill_tokens"]
    for step, beyond in scheduler.new_tokens_beyond:
        num_new_tokens[step] += beyond
    return Replay(
        columns=columns,
        num_new_tokens=num_new_tokens,
        first_scheduled_step=column("first_scheduled_step"),
        first_token_step=column("first_token_step"),
        last_token_step=column("last_token_step"),
        num_preemptions=column("num_preemptions"),
        num_cached_tokens=column("num_cached_tokens"),
        num_recomputed_tokens=column("num_recomputed_tokens"),
        token_gaps=np.array(scheduler.token_gaps, dtype=np.int64).reshape(-1, 2),
        step_end_s=step_end_s,
    )
