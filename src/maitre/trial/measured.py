"""From what a server's scheduler recorded to a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maitre.recording import RunRecord
from maitre.records import Cell, Workload
from maitre.simulator.step import KV_BLOCKS, REQUESTS, SEQS, TOKEN_BUDGET
from maitre.trial.run import Run
from maitre.trial.useful_tokens import recorded_useful_tokens


def measured_run(record: RunRecord, workload: Workload, cell: Cell, num_gpu_blocks: int, *, is_burst: bool) -> Run:
    """The run that a server's scheduler recorded.

    Times between two tokens are the intervals between steps; a request's gap over a preemption is not in the records.

    Args:
        record: of all steps and all requests.
        workload: the requests, in the record's order.
        cell: the dials.
        num_gpu_blocks: the KV pool, the null block included.
        is_burst: all requests were sent at once.
    """
    columns, requests = record.columns, record.requests
    num_cached = int(requests["num_cached_tokens"].sum())
    num_computed = int(columns["prefill_tokens"].sum())
    return Run(
        cell=cell,
        num_gpu_blocks=num_gpu_blocks,
        step_end_s=record.step_end_s,
        bound_by=observed_bound(columns, cell),
        num_running=columns["num_running"],
        num_waiting=columns["num_waiting"],
        num_free_blocks=columns["num_free_blocks"],
        num_useful_tokens=recorded_useful_tokens(record, workload),
        num_steady_decodes=columns["num_decodes"].astype(np.int64),
        other_gaps=np.zeros((0, 2), dtype=np.int64),
        output_tokens=workload.output_tokens,
        arrival_s=requests["arrival_s"],
        first_scheduled_s=requests["first_scheduled_s"],
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
