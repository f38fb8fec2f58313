"""What one model served within a window, as a Prometheus tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from maitre.errors import InputError, UsageError
from maitre.metric_series import FloatArray, Histogram, MetricSeries
from maitre.workload.prometheus.families import Families, Rates

PROMPT, OUTPUT = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"
_FINISHED = "vllm:request_success_total"
_PREFIX_CACHE = (
    ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    ("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"),
)
"""Hits and queries, in tokens (up to 0.8 in blocks); the second pair up to 0.11."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """The finished requests of one model, and the state of its engines. None: not exposed, or nothing counted."""

    model: str
    """As `--served-model-name` or the model's name; empty where no label says it."""
    address: str
    window: str
    window_s: float
    prompt: Histogram
    output: Histogram
    max_tokens: Histogram | None
    """What the requests allowed."""
    ttft_s: Histogram | None
    latency_s: Histogram | None
    """End to end, from arrival to the last token."""
    finished: Mapping[str, float]
    """Requests by `finished_reason`."""
    rates: Rates | None
    """Of finished requests."""
    running: MetricSeries | None
    waiting: MetricSeries | None
    prefix_hit_rate: float | None
    """Share of the prompt tokens that the prefix cache answered."""
    remarks: tuple[str, ...] = ()
    """What the server added to its answers."""


def read_served(families: Families) -> Served:
    """Ask for all that describes the traffic, about fifteen questions.

    Args:
        families: of a server, over a window.

    Raises:
        InputError: there are no length histograms of vLLM, or nothing was counted in the window.
        UsageError: several models were, and none is chosen.
        SystemFailure: the server cannot be reached or fails.
    """
    model = _choose_model(families)
    families = families.of_model(model) if model else families
    prompt, output = families.histogram(PROMPT), families.histogram(OUTPUT)
    if prompt is None or output is None:
        raise InputError(
            f"{families.client.address} counts prompts, but no outputs", "is it vLLM? see request_generation_tokens"
        )
    served = Served(
        model=model,
        address=families.client.address,
        window=str(families.question),
        window_s=float(families.question.window_s),
        prompt=prompt,
        output=output,
        max_tokens=families.histogram("vllm:request_params_max_tokens"),
        ttft_s=families.histogram("vllm:time_to_first_token_seconds"),
        latency_s=families.histogram("vllm:e2e_request_latency_seconds"),
        finished=families.gain_by(_FINISHED, "finished_reason"),
        rates=families.rates(_FINISHED) or families.rates(f"{PROMPT}_count"),
        running=families.gauge("vllm:num_requests_running"),
        waiting=families.gauge("vllm:num_requests_waiting"),
        prefix_hit_rate=_prefix_hit_rate(families),
    )
    return replace(served, remarks=tuple(families.client.remarks))


def _choose_model(families: Families) -> str:
    """The only model that finished requests; empty where no label names it."""
    address = families.client.address
    if not families.names:
        hint = "check the address and the filters; vLLM's metrics are called vllm:…"
        raise InputError(f"{address} has no metrics of vLLM from {families.question}", hint)
    if not {f"{PROMPT}_count", PROMPT} & families.names.keys():
        hint = "vLLM exposes request_prompt_tokens unless --disable-log-stats is set; is a relabelling dropping it?"
        raise InputError(f"{address} has metrics of vLLM, but no histogram of prompt lengths", hint)
    counts = {model: count for model, count in families.requests_by_model(PROMPT).items() if count >= 0.5}
    if not counts:
        hint = "ask for a longer or another window with --since and --until"
        raise InputError(f"{address}: no request finished from {families.question}", hint)
    if len(counts) > 1:
        by_count = sorted(counts.items(), key=lambda item: -item[1])
        told = ", ".join(f"{model or '(no name)'} ({count:,.0f} requests)" for model, count in by_count)
        raise UsageError(
            f"{len(counts)} models finished requests: {told}", f"choose one: --where model={by_count[0][0]}"
        )
    return next(iter(counts))


def _prefix_hit_rate(families: Families) -> float | None:
    for hits_name, queries_name in _PREFIX_CACHE:
        hits, queries = families.gain(hits_name), families.gain(queries_name)
        if hits is not None and queries:
            return min(1.0, hits / queries)
    return None


def in_flight(served: Served) -> FloatArray:
    """Running and waiting requests at each moment that has both, shape (n,); empty without a gauge of running ones."""
    if served.running is None:
        return np.empty(0)
    if served.waiting is None:
        return served.running.values
    _, ours, theirs = np.intersect1d(served.running.time_s, served.waiting.time_s, return_indices=True)
    together: FloatArray = served.running.values[ours] + served.waiting.values[theirs]
    return together
