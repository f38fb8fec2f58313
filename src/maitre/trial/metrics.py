"""From a run to the figures of a trial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from maitre.records import BoundBy, Trial, Workload
from maitre.slo import LatencyTarget
from maitre.trial.attainment import attains
from maitre.trial.latencies import percentiles, times_per_output_token, token_gaps, weighted_percentiles
from maitre.trial.run import Run
from maitre.trial.steady import steady_window

BOUNDS: tuple[BoundBy, ...] = get_args(BoundBy)


def summarize(
    run: Run, workload: Workload, *, engine: str, repeat: int = 0, targets: Sequence[LatencyTarget] = ()
) -> Trial:
    """The figures of one run.

    Args:
        run: what happened.
        workload: the requests that it served.
        engine: who answered.
        repeat: number of the repetition.
        targets: are held against the run.
    """
    duration_s = run.duration_s
    steps_s = run.steps_s
    usage = 1 - run.num_free_blocks / (run.num_gpu_blocks - 1)
    bound_share = _bound_share(run.bound_by, steps_s)
    return Trial(
        max_num_seqs=run.cell.max_num_seqs,
        max_num_batched_tokens=run.cell.max_num_batched_tokens,
        flags=run.cell.flags,
        engine=engine,
        repeat=repeat,
        num_requests=workload.num_requests,
        num_steps=len(run.step_end_s),
        duration_s=duration_s,
        total_tokens_per_s=workload.total_tokens / duration_s,
        output_tokens_per_s=int(workload.output_tokens.sum()) / duration_s,
        requests_per_s=workload.num_requests / duration_s,
        steady=steady_window(run),
        ttft_s=percentiles(run.first_token_s - run.arrival_s),
        itl_s=weighted_percentiles(*token_gaps(run)),
        tpot_s=percentiles(times_per_output_token(run)),
        e2e_s=percentiles(run.last_token_s - run.arrival_s),
        attainment=attains(run, targets) if targets else None,
        num_preemptions=run.num_preemptions,
        num_recomputed_tokens=run.num_recomputed_tokens,
        cached_token_share=run.num_cached_tokens / int(workload.prompt_tokens.sum()),
        kv_usage=float(np.average(usage, weights=steps_s)),
        kv_usage_max=float(usage.max()),
        num_gpu_blocks=run.num_gpu_blocks,
        bound_by=max(BOUNDS, key=lambda bound: bound_share[bound]),
        bound_share=bound_share,
    )


def _bound_share(bound_by: NDArray[Any], steps_s: NDArray[np.float64]) -> dict[BoundBy, float]:
    seconds = np.bincount(bound_by, weights=steps_s, minlength=len(BOUNDS))
    return {bound: float(share) for bound, share in zip(BOUNDS, seconds / seconds.sum(), strict=True)}
