"""From where on a figure is an alarm: the three confirmations of a setting, and latency targets."""

from __future__ import annotations

from pydantic import Field

from maitre.records import Record, Study, Trial
from maitre.slo import LatencyTarget, parse_latency_targets

STUDY_MARGIN = 1.5
"""How far above the study's own percentile a target without margin of its own is set. vLLM's default buckets alone
overstate percentiles by up to 45 % (P75 of the prompts of Azure's conversation trace, buckets 1-2-5)."""

FINEST_ITL_S = 0.010
"""Upper bound of the first default bucket of the times between tokens (vLLM 0.4.2 to 0.33, `v1/metrics/buckets.py`)."""


class Thresholds(Record):
    """Limits of the alerts, which the dashboard draws too.

    The defaults of the first three say that a setting is right: nothing waits in steady state, less than one preemption
    a minute, stable inter-token latency.
    """

    max_waiting: float = Field(default=1.0, ge=0)
    """Requests that wait on one engine, mean of ten minutes."""
    max_preemptions: float = Field(default=1.0, gt=0)
    """Preemptions a minute on one engine from which on there are too many, mean of ten minutes."""
    max_itl_ratio: float = Field(default=8.0, gt=1)
    """p99 over p50 of the inter-token latency. Prefills that stall decodes made gaps 8 times as long as the others in
    the measurement of vLLM's pull request 44558; a ratio proves no second mode (`maitre verify` tests for one)."""
    max_kv_usage: float = Field(default=0.95, gt=0, le=1)
    """Share of the KV pool in use on one engine, mean of five minutes."""
    max_queue_p95_s: float = Field(default=1.0, gt=0)
    """p95 of the time in the queue. An idle scheduler admits a request in the next step, far below a second; vLLM's
    first bucket ends at 0.3 s, so no lower limit than that can be told."""
    max_lost: float = Field(default=0.05, gt=0, lt=1)
    """Share of the requests with a first token that never came to their end."""
    min_kv_usage: float = Field(default=0.5, ge=0, lt=1)
    """Share of the KV pool below which a server with demand has room."""
    min_running: float = Field(default=4.0, ge=0)
    """Running requests, mean of an hour, from which on there is demand."""
    targets: tuple[LatencyTarget, ...] = ()
    """Latency targets at p50 to p99; no default, they are the service's own."""
    max_num_seqs: int | None = None
    """The limit in force, where it is known."""


def study_targets(study: Study) -> tuple[LatencyTarget, ...]:
    """Latency targets by a study: those that it was asked for, else what its recommended cell is expected to show.

    Of the latter the time to first token counts only if requests came at their own times: with all of them there at
    once it is the time in the queue. Empty if the study knows no latency.
    """
    if study.objective.targets:
        asked = parse_latency_targets(study.objective.targets)
        return tuple(target for target in asked if target.percent < 100)
    trial = _recommended(study)
    expected = {
        ("itl", 99): trial.itl_s.p99 if trial and trial.itl_s else None,
        ("ttft", 95): trial.ttft_s.p95 if trial and trial.ttft_s and study.open_loop else None,
    }
    return tuple(
        LatencyTarget.model_validate({"metric": metric, "percent": percent, "limit_s": float(f"{margin:.3g}")})
        for (metric, percent), value_s in expected.items()
        if value_s and (margin := value_s * STUDY_MARGIN)
    )


def _recommended(study: Study) -> Trial | None:
    return next((trial for trial in study.cells if trial.cell == study.recommended), None)
