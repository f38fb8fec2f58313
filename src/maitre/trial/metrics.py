"""From steps and when they ended to the figures of a trial. Simulated, recorded and measured runs all come here.

Latencies are those of the server: first token and tokens at the end of the step that computed them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from maitre.records import BoundBy, Cell, Percentiles, Trial, Workload
from maitre.simulator.replay import Replay
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.step import TOKEN_BUDGET

BOUNDS: tuple[BoundBy, ...] = get_args(BoundBy)


@dataclass(frozen=True, slots=True)
class Run:
    """What happened in one run: m steps that served n requests. Times are seconds since the run began."""

    cell: Cell
    num_gpu_blocks: int
    step_end_s: NDArray[np.float64]
    """Shape (m,), when the output of each step was there."""
    bound_by: NDArray[Any]
    """Shape (m,), index into `BOUNDS`."""
    num_free_blocks: NDArray[Any]
    """Shape (m,), after the step was scheduled."""
    num_steady_decodes: NDArray[Any]
    """Shape (m,), output tokens whose predecessor came out of the step before."""
    other_gaps: NDArray[Any]
    """Shape (gaps, 2), steps of two consecutive tokens of one request that are not consecutive."""
    arrival_s: NDArray[np.float64]
    """Shape (n,), as are the next two."""
    first_token_s: NDArray[np.float64]
    last_token_s: NDArray[np.float64]
    num_preemptions: int
    num_recomputed_tokens: int
    num_cached_tokens: int
    """Prompt tokens that the prefix cache answered at the first admission."""
    is_burst: bool
    """All requests were there at once."""


def replay_run(replay: Replay, step_end_s: NDArray[np.float64], workload: Workload, rules: SchedulerRules) -> Run:
    """The run of a replayed schedule.

    Args:
        replay: the schedule of all requests.
        step_end_s: when the output of each step was there, shape (steps,), seconds since the run began.
        workload: the same requests; arrivals count only if the replay used them.
        rules: the scheduler's settings.
    """
    arrival_s = workload.arrival_s if replay.step_end_s is not None else None
    return Run(
        cell=Cell(max_num_seqs=rules.max_num_seqs, max_num_batched_tokens=rules.max_num_batched_tokens),
        num_gpu_blocks=rules.num_gpu_blocks,
        step_end_s=step_end_s,
        bound_by=replay.columns["bound_by"],
        num_free_blocks=replay.columns["num_free_blocks"],
        num_steady_decodes=replay.columns["num_steady_decodes"],
        other_gaps=replay.token_gaps,
        arrival_s=np.zeros(workload.num_requests) if arrival_s is None else arrival_s,
        first_token_s=step_end_s[replay.first_token_step],
        last_token_s=step_end_s[replay.last_token_step],
        num_preemptions=int(replay.num_preemptions.sum()),
        num_recomputed_tokens=int(replay.num_recomputed_tokens.sum()),
        num_cached_tokens=int(replay.num_cached_tokens.sum()),
        is_burst=arrival_s is None,
    )


def summarize(run: Run, workload: Workload, *, engine: str, repeat: int = 0) -> Trial:
    """The figures of one run.

    Args:
        run: what happened.
        workload: the requests that it served.
        engine: who answered.
        repeat: number of the repetition.
    """
    duration_s = float(run.step_end_s[-1])
    steps_s = np.diff(run.step_end_s, prepend=0.0)
    usage = 1 - run.num_free_blocks / (run.num_gpu_blocks - 1)
    bound_share = _bound_share(run.bound_by, steps_s)
    return Trial(
        max_num_seqs=run.cell.max_num_seqs,
        max_num_batched_tokens=run.cell.max_num_batched_tokens,
        engine=engine,
        repeat=repeat,
        num_requests=workload.num_requests,
        num_steps=len(run.step_end_s),
        duration_s=duration_s,
        total_tokens_per_s=workload.total_tokens / duration_s,
        output_tokens_per_s=int(workload.output_tokens.sum()) / duration_s,
        requests_per_s=workload.num_requests / duration_s,
        ttft_s=_percentiles(run.first_token_s - run.arrival_s),
        itl_s=_token_gaps(run, steps_s),
        e2e_s=_percentiles(run.last_token_s - run.arrival_s),
        num_preemptions=run.num_preemptions,
        num_recomputed_tokens=run.num_recomputed_tokens,
        cached_token_share=run.num_cached_tokens / int(workload.prompt_tokens.sum()),
        kv_usage=float(np.average(usage, weights=steps_s)),
        kv_usage_max=float(usage.max()),
        num_gpu_blocks=run.num_gpu_blocks,
        bound_by=max(BOUNDS, key=lambda bound: bound_share[bound]),
        bound_share=bound_share,
    )


def weighted_percentiles(values: NDArray[Any], weights: NDArray[Any]) -> Percentiles | None:
    """Percentiles of values that occur `weights` times each: the smallest value that reaches the rank.

    Args:
        values: shape (k,), seconds.
        weights: shape (k,), counts.

    Returns:
        None if no value occurs.
    """
    order = np.argsort(values, kind="stable")
    ranks = np.cumsum(weights[order])
    if not len(ranks) or ranks[-1] == 0:
        return None
    positions = np.searchsorted(ranks, np.array([0.5, 0.95, 0.99, 1.0]) * ranks[-1])
    p50, p95, p99, largest = values[order][positions].tolist()
    return Percentiles(p50=p50, p95=p95, p99=p99, max=largest)


def _percentiles(values: NDArray[Any]) -> Percentiles | None:
    return weighted_percentiles(values, np.ones(len(values), dtype=np.int64))


def _token_gaps(run: Run, steps_s: NDArray[np.float64]) -> Percentiles | None:
    """Inter-token latency over all tokens but each request's first.

    All sequences of a step get their tokens together, so a step counts once for each of its steady decodes. The ramp of
    a burst is left out: it is no traffic that anybody serves.
    """
    weights = run.num_steady_decodes.astype(np.int64)
    gaps = run.other_gaps
    if run.is_burst:
        ramp = _num_ramp_steps(run.bound_by)
        weights[:ramp] = 0
        gaps = gaps[gaps[:, 0] >= ramp]
    other_s = run.step_end_s[gaps[:, 1]] - run.step_end_s[gaps[:, 0]]
    values = np.concatenate([steps_s, other_s])
    return weighted_percentiles(values, np.concatenate([weights, np.ones(len(gaps), dtype=np.int64)]))


def _num_ramp_steps(bound_by: NDArray[Any]) -> int:
    """Steps up to the first that the token budget does not bind: until then the burst's prompts are being computed."""
    is_past = bound_by != TOKEN_BUDGET
    return int(is_past.argmax()) if is_past.any() else 0


def _bound_share(bound_by: NDArray[Any], steps_s: NDArray[np.float64]) -> dict[BoundBy, float]:
    seconds = np.bincount(bound_by, weights=steps_s, minlength=len(BOUNDS))
    return {bound: float(share) for bound, share in zip(BOUNDS, seconds / seconds.sum(), strict=True)}
