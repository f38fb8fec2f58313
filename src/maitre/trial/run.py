"""What happened in one run, step by step and request by request. Simulated, recorded and measured runs all come here.

Latencies are those of the server: first token and tokens at the end of the step that computed them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maitre.records import Cell, Workload
from maitre.simulator.replay import Replay
from maitre.simulator.rules import SchedulerRules


@dataclass(frozen=True, slots=True)
class Run:
    """m steps that served n requests. Times are seconds since the run began."""

    cell: Cell
    num_gpu_blocks: int
    step_end_s: NDArray[np.float64]
    """Shape (m,), when the output of each step was there."""
    bound_by: NDArray[Any]
    """Shape (m,), index into `maitre.trial.metrics.BOUNDS`."""
    num_running: NDArray[Any]
    """Shape (m,), after the step was scheduled, as are the next two."""
    num_waiting: NDArray[Any]
    num_free_blocks: NDArray[Any]
    num_useful_tokens: NDArray[Any]
    """Shape (m,), prompt tokens computed, or found in the prefix cache, for the first time, and output tokens. Over all
    steps they add up to the tokens of the workload."""
    num_steady_decodes: NDArray[Any]
    """Shape (m,), output tokens whose predecessor came out of the step before."""
    other_gaps: NDArray[Any]
    """Shape (gaps, 2), steps of two consecutive tokens of one request that are not consecutive."""
    output_tokens: NDArray[np.int64]
    """Shape (n,), as are the next four."""
    arrival_s: NDArray[np.float64]
    first_scheduled_s: NDArray[np.float64]
    first_token_s: NDArray[np.float64]
    last_token_s: NDArray[np.float64]
    num_preemptions: int
    num_recomputed_tokens: int
    num_cached_tokens: int
    """Prompt tokens that the prefix cache answered at the first admission."""
    is_burst: bool
    """All requests were there at once."""

    @property
    def duration_s(self) -> float:
        """From the begin of the run to the last output."""
        return float(self.step_end_s[-1])

    @property
    def steps_s(self) -> NDArray[np.float64]:
        """Time from the output before to each output, shape (m,); idle time counts to the step behind it."""
        return np.diff(self.step_end_s, prepend=0.0)


def replay_run(replay: Replay, step_end_s: NDArray[np.float64], workload: Workload, rules: SchedulerRules) -> Run:
    """The run of a replayed schedule.

    Args:
        replay: the schedule of all requests.
        step_end_s: when the output of each step was there, shape (steps,), seconds since the run began.
        workload: the same requests; arrivals count only if the replay used them.
        rules: the scheduler's settings.
    """
    own_arrival_s = workload.arrival_s if replay.step_end_s is not None else None
    arrival_s = np.zeros(workload.num_requests) if own_arrival_s is None else own_arrival_s
    step_start_s = np.concatenate([[0.0], step_end_s[:-1]])
    first_tokens = np.bincount(replay.first_token_step, minlength=replay.num_steps)
    return Run(
        cell=Cell(max_num_seqs=rules.max_num_seqs, max_num_batched_tokens=rules.max_num_batched_tokens),
        num_gpu_blocks=rules.num_gpu_blocks,
        step_end_s=step_end_s,
        bound_by=replay.columns["bound_by"],
        num_running=replay.columns["num_running"],
        num_waiting=replay.columns["num_waiting"],
        num_free_blocks=replay.columns["num_free_blocks"],
        num_useful_tokens=replay.num_new_tokens + first_tokens,
        num_steady_decodes=replay.columns["num_steady_decodes"],
        other_gaps=replay.token_gaps,
        output_tokens=workload.output_tokens,
        arrival_s=arrival_s,
        first_scheduled_s=np.maximum(step_start_s[replay.first_scheduled_step], arrival_s),
        first_token_s=step_end_s[replay.first_token_step],
        last_token_s=step_end_s[replay.last_token_step],
        num_preemptions=int(replay.num_preemptions.sum()),
        num_recomputed_tokens=int(replay.num_recomputed_tokens.sum()),
        num_cached_tokens=int(replay.num_cached_tokens.sum()),
        is_burst=own_arrival_s is None,
    )
