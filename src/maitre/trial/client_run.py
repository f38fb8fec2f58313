"""From what the load generator saw of a run to the figures of a trial: for a server that records nothing itself.

The figures keep the definitions of those that a server records (docs/decisions/0003): times are first seen at the
client instead, so they have the network and the server's front end in them, and a stream's gap over a preemption too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maitre.records import Cell, Trial, Workload
from maitre.trial.latencies import percentiles
from maitre.trial.load import LoadResult, RequestOutcome
from maitre.trial.server_metrics import ServerSide

MAX_MERGED_SHARE = 0.05
"""Share of the tokens that may come in one event with another; beyond, gaps between events are not those of tokens."""


def client_trial(
    result: LoadResult, workload: Workload, cell: Cell, server: ServerSide | None, *, engine: str, is_burst: bool
) -> Trial:
    """The figures of one streamed run.

    Args:
        result: every request came to its end.
        workload: the requests.
        cell: the dials that the server runs at.
        server: what its `/metrics` say; None if it has none.
        engine: who answered.
        is_burst: all requests were sent at once.
    """
    outcomes = result.outcomes
    last_s = _times([outcome.last_token_s for outcome in outcomes])
    duration_s = float(last_s.max()) - min(outcome.sent_s for outcome in outcomes)
    usage = server.kv_usage if server else None
    num_preemptions = server.num_preemptions if server else None
    return Trial(
        **cell.model_dump(),
        engine=engine,
        num_requests=workload.num_requests,
        num_steps=None,
        duration_s=duration_s,
        total_tokens_per_s=workload.total_tokens / duration_s,
        output_tokens_per_s=int(workload.output_tokens.sum()) / duration_s,
        requests_per_s=workload.num_requests / duration_s,
        ttft_s=percentiles(result.ttft_s),
        itl_s=percentiles(token_gaps(result, cell, is_burst=is_burst)),
        tpot_s=percentiles(_times_per_output_token(outcomes)),
        e2e_s=percentiles(result.e2e_s),
        num_preemptions=num_preemptions,
        num_recomputed_tokens=0 if num_preemptions == 0 else None,
        cached_token_share=server.cached_token_share if server else None,
        kv_usage=usage and usage[0],
        kv_usage_max=usage and usage[1],
        num_gpu_blocks=server.after.num_gpu_blocks if server else None,
        bound_by=None,
        bound_share={},
        client_cpu_share=result.health.cpu_share,
        client_lag_p99_s=result.health.lag_p99_s,
        spoiled_by=_spoiled_by(result, server),
    )


def token_gaps(result: LoadResult, cell: Cell, *, is_burst: bool) -> NDArray[np.float64]:
    """Inter-token latencies in seconds, shape (gaps,); without those in the ramp of a burst.

    The ramp ends when as many requests have their first token as there are slots: until then prompts fill them.
    """
    first_s = np.sort(_times([outcome.first_token_s for outcome in result.outcomes]))
    ramp_s = float(first_s[min(cell.max_num_seqs, len(first_s)) - 1]) if is_burst else -np.inf
    kept = []
    for outcome in result.outcomes:
        if outcome.gaps_s is not None and outcome.first_token_s is not None:
            end_s = outcome.first_token_s + np.cumsum(outcome.gaps_s)
            kept.append(outcome.gaps_s[end_s > ramp_s])
    return np.concatenate(kept) if kept else np.zeros(0)


def _times_per_output_token(outcomes: tuple[RequestOutcome, ...]) -> NDArray[np.float64]:
    """(last token − first token) / (output tokens − 1) of every request with two output tokens or more, in seconds."""
    return np.array(
        [
            (outcome.last_token_s - outcome.first_token_s) / (outcome.num_tokens - 1)
            for outcome in outcomes
            if outcome.first_token_s is not None and outcome.last_token_s is not None and outcome.num_tokens > 1
        ]
    )


def _spoiled_by(result: LoadResult, server: ServerSide | None) -> str:
    """Everything that makes the figures doubtful, in words; empty when nothing does."""
    num_merged = sum(outcome.num_merged_tokens for outcome in result.outcomes)
    merged = f"{num_merged / max(result.num_tokens, 1):.0%} of the tokens came in one event with another"
    reasons = [
        result.health.spoiled_by,
        server.other_traffic(result) if server else "",
        merged if num_merged > MAX_MERGED_SHARE * result.num_tokens else "",
    ]
    return "; ".join(filter(None, reasons))


def _times(seconds: list[float | None]) -> NDArray[np.float64]:
    return np.array([second for second in seconds if second is not None])
