"""From steps and when they ended to the figures of a trial. Simulated, recorded and measured trials all come from here.

Latencies are those of the server: first token and tokens at the end of the step that computed them.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from maitre.records import BoundBy, Percentiles, Trial, Workload
from maitre.simulator.replay import Replay
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.step import TOKEN_BUDGET

BOUNDS: tuple[BoundBy, ...] = get_args(BoundBy)


def summarize(
    replay: Replay, step_end_s: NDArray[np.float64], workload: Workload, rules: SchedulerRules, *, engine: str,
    repeat: int = 0,
) -> Trial:  # fmt: skip
    """The figures of one run.

    Args:
        replay: the schedule of all requests.
        step_end_s: when the output of each step was there, shape (steps,), seconds since the run began.
        workload: the same requests; arrivals count only if the replay used them.
        rules: the scheduler's settings.
        engine: who answered.
        repeat: number of the repetition.
    """
    duration_s = float(step_end_s[-1])
    arrival_s = workload.arrival_s if replay.step_end_s is not None else None
    start_s = np.zeros(workload.num_requests) if arrival_s is None else arrival_s
    steps_s = np.diff(step_end_s, prepend=0.0)
    usage = 1 - replay.columns["num_free_blocks"] / rules.num_usable_blocks
    bound_share = _bound_share(replay.columns["bound_by"], steps_s)
    num_output_tokens = int(workload.output_tokens.sum())
    return Trial(
        max_num_seqs=rules.max_num_seqs,
        max_num_batched_tokens=rules.max_num_batched_tokens,
        engine=engine,
        repeat=repeat,
        num_requests=workload.num_requests,
        num_steps=replay.num_steps,
        duration_s=duration_s,
        total_tokens_per_s=workload.total_tokens / duration_s,
        output_tokens_per_s=num_output_tokens / duration_s,
        requests_per_s=workload.num_requests / duration_s,
        ttft_s=_percentiles(step_end_s[replay.first_token_step] - start_s),
        itl_s=_token_gaps(replay, step_end_s, steps_s),
        e2e_s=_percentiles(step_end_s[replay.last_token_step] - start_s),
        num_preemptions=int(replay.num_preemptions.sum()),
        num_recomputed_tokens=int(replay.num_recomputed_tokens.sum()),
        cached_token_share=float(replay.num_cached_tokens.sum() / workload.prompt_tokens.sum()),
        kv_usage=float(np.average(usage, weights=steps_s)),
        kv_usage_max=float(usage.max()),
        num_gpu_blocks=rules.num_gpu_blocks,
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


def _token_gaps(replay: Replay, step_end_s: NDArray[np.float64], steps_s: NDArray[np.float64]) -> Percentiles | None:
    """Inter-token latency over all tokens but each request's first.

    All sequences of a step get their tokens together, so a step counts once for each of its steady decodes. The ramp of
    a run that has all requests at once is left out: such a burst is no traffic that anybody serves.
    """
    weights = replay.columns["num_steady_decodes"].copy()
    gaps = replay.token_gaps
    if replay.step_end_s is None:
        ramp = _num_ramp_steps(replay.columns["bound_by"])
        weights[:ramp] = 0
        gaps = gaps[gaps[:, 0] >= ramp]
    irregular_s = step_end_s[gaps[:, 1]] - step_end_s[gaps[:, 0]]
    values = np.concatenate([steps_s, irregular_s])
    return weighted_percentiles(values, np.concatenate([weights, np.ones(len(gaps), dtype=np.int64)]))


def _num_ramp_steps(bound_by: NDArray[Any]) -> int:
    """Steps up to the first that the token budget does not bind: until then the burst's prompts are being computed."""
    is_past = bound_by != TOKEN_BUDGET
    return int(is_past.argmax()) if is_past.any() else 0


def _bound_share(bound_by: NDArray[Any], steps_s: NDArray[np.float64]) -> dict[BoundBy, float]:
    seconds = np.bincount(bound_by, weights=steps_s, minlength=len(BOUNDS))
    return {bound: float(share) for bound, share in zip(BOUNDS, seconds / seconds.sum(), strict=True)}
