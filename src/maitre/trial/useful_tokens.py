"""Useful tokens of each step that a server recorded: without those that are computed again after a preemption.

A recorded step says how many prompt tokens it computed, but not whose, nor whether for the first time. If nothing was
preempted they all are. Else the requests tell: between its first schedule and its first token a request's prompt is
computed for the first time, so its tokens are booked to the steps of that time, in proportion to what each step
computed. That is exact but for prompts that the token budget cuts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maitre.recording import RunRecord
from maitre.records import Workload


def recorded_useful_tokens(record: RunRecord, workload: Workload) -> NDArray[np.float64]:
    """Useful tokens of each step, shape (steps,), as in `Run.num_useful_tokens`; they add up to the workload's.

    A prompt's cached tokens count in the step that admits it, its first output token in the step that ends it. The
    output tokens at the end of computations after a preemption are told from these only in sum, and are booked in
    proportion to them.
    """
    steps, num_cached = record.columns, record.requests["num_cached_tokens"]
    last_step = record.num_steps - 1
    first = np.minimum(np.searchsorted(steps["schedule_start_s"], record.requests["first_scheduled_s"]), last_step)
    last = np.clip(np.searchsorted(record.step_end_s, record.requests["first_token_s"]), first, last_step)
    prompt = steps["prefill_tokens"]
    if steps["num_preemptions"].any():
        prompt = _first_time(prompt, first, last, workload.prompt_tokens - num_cached)
    again = np.maximum(steps["prefill_tokens"] - prompt, 0.0)
    tokens: NDArray[np.float64] = prompt + steps["num_decodes"] + np.bincount(last, minlength=record.num_steps)
    tokens += np.bincount(first, num_cached, record.num_steps)
    tokens += (workload.total_tokens - tokens.sum()) * again / max(again.sum(), 1.0)
    return tokens


def _first_time(
    computed: NDArray[np.float64], first: NDArray[np.int64], last: NDArray[np.int64], num_tokens: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Share each request's tokens out over its steps `first` to `last`, in proportion to what these computed."""
    num_steps = len(computed)
    before = np.concatenate([[0.0], np.cumsum(computed)])
    shares = num_tokens / np.maximum(before[last + 1] - before[first], 1.0)
    entering = np.bincount(first, shares, num_steps + 1) - np.bincount(last + 1, shares, num_steps + 1)
    shared: NDArray[np.float64] = np.cumsum(entering)[:num_steps] * computed
    return shared
