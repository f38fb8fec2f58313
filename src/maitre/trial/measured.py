"""From what a server's scheduler recorded to a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maitre.records import Cell, Workload
from maitre.simulator.step import KV_BLOCKS, REQUESTS, SEQS, TOKEN_BUDGET
from maitre.trial.dials import RecordedSteps
from maitre.trial.metrics import Run


def measured_run(recorded: RecordedSteps, workload: Workload, *, is_burst: bool) -> Run:
    """The run that a server's scheduler recorded.

    Times between two tokens are the intervals between steps; a request's gap over a preemption is not in the records.

    Args:
        recorded: all requests of the workload have ended in it.
        workload: the requests, by index.
        is_burst: all requests were sent at once.
    """
    columns, requests = recorded.columns, recorded.request_columns
    cell = Cell(
        max_num_seqs=recorded.applied.max_num_seqs, max_num_batched_tokens=recorded.applied.max_num_batched_tokens
    )
    num_cached = int(np.nansum(requests["num_cached_tokens"]))
    num_computed = int(columns["prefill_tokens"].sum())
    return Run(
        cell=cell,
        num_gpu_blocks=recorded.applied.num_gpu_blocks,
        step_end_s=columns["output_end_s"],
        bound_by=observed_bound(columns, cell),
        num_free_blocks=columns["num_free_blocks"],
        num_steady_decodes=columns["num_decodes"].astype(np.int64),
        other_gaps=np.zeros((0, 2), dtype=np.int64),
        arrival_s=requests["arrival_s"],
        first_token_s=requests["first_token_s"],
        last_token_s=requests["last_token_s"],
        num_preemptions=int(columns["num_preemptions"].sum()),
        num_recomputed_tokens=max(0, num_computed - int(workload.prompt_tokens.sum()) + num_cached),
        num_cached_tokens=num_cached,
        is_burst=is_burst,
    )


def observed_bound(columns: dict[str, NDArray[np.float64]], cell: Cell) -> NDArray[np.int64]:
    """What kept more work out of each step, shape (steps,), by the rules of `Scheduler` as far as columns tell.

    Args:
        columns: the step columns of a recording.
        cell: the dials.
    """
    num_tokens = columns["num_decodes"] + columns["prefill_tokens"]
    is_spent = (num_tokens >= cell.max_num_batched_tokens) & (columns["num_prefills"] > 0)
    rules = [
        (columns["num_preemptions"] > 0, KV_BLOCKS),
        (is_spent, TOKEN_BUDGET),
        (columns["num_waiting"] == 0, REQUESTS),
        (columns["num_running"] >= cell.max_num_seqs, SEQS),
    ]
    bound: NDArray[np.int64] = np.select([holds for holds, _ in rules], [limit for _, limit in rules], KV_BLOCKS)
    return bound
