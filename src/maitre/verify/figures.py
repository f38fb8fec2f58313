"""The figures of a window that people ask for, whatever the verdict."""

from __future__ import annotations

import numpy as np

from maitre.metric_series import Histogram
from maitre.records import Record
from maitre.verify.evidence import Evidence
from maitre.verify.remarks import REJECTIONS


class Figures(Record):
    """Over all engines; None: not exposed, or not known from one look."""

    duration_s: float | None
    num_requests: float | None
    """Finished."""
    rate_rps: float | None
    """Of those."""
    running: float | None
    """Mean, as is the next one."""
    waiting: float | None
    kv_usage: float | None
    """Mean over engines, 0 to 1."""
    kv_usage_p95: float | None
    """Of the fullest engine."""
    prefix_hit_rate: float | None
    """Share of the prompt tokens that the prefix cache had, 0 to 1."""
    prompt_tokens: float | None
    """Mean of a request, as is the next one."""
    output_tokens: float | None
    output_tokens_per_s: float | None
    ttft_mean_s: float | None
    queue_time_mean_s: float | None
    itl_mean_s: float | None
    preemptions_per_min: float | None
    num_rejected: float | None
    """Requests that the front end refused (0.32 and later)."""


def figures_of(evidence: Evidence) -> Figures:
    """The figures of one window."""
    whole = evidence.whole
    usages = [usage for one in evidence.engines if len(usage := one.kv_usage[np.isfinite(one.kv_usage)])]
    return Figures(
        duration_s=whole.duration_s,
        num_requests=whole.num_requests,
        rate_rps=whole.rate_rps,
        running=whole.running,
        waiting=whole.waiting,
        kv_usage=whole.kv_usage,
        kv_usage_p95=max((float(np.quantile(usage, 0.95)) for usage in usages), default=None),
        prefix_hit_rate=whole.prefix_hit_rate,
        prompt_tokens=whole.prompt_tokens,
        output_tokens=whole.output_tokens,
        output_tokens_per_s=whole.output_tokens_per_s,
        ttft_mean_s=_mean(whole.ttft),
        queue_time_mean_s=_mean(whole.queue_time),
        itl_mean_s=_mean(whole.itl),
        preemptions_per_min=evidence.preemptions_per_min,
        num_rejected=next((gain for name in REJECTIONS if (gain := evidence.gain(name)) is not None), None),
    )


def _mean(histogram: Histogram | None) -> float | None:
    return None if histogram is None else histogram.mean
