"""Metric series as a server would show them, written down by hand."""

import numpy as np

from maitre.metric_series import MetricSeries

STEP_S = 15.0
ITL_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, np.inf)


def gauge(name, values, every_s=STEP_S, **labels):
    values = np.atleast_1d(np.asarray(values, dtype=float))
    return MetricSeries(f"vllm:{name}", labels, every_s * np.arange(len(values)), values)


def counter(name, per_s, num_samples=240, every_s=STEP_S, **labels):
    times = every_s * np.arange(num_samples)
    return MetricSeries(f"vllm:{name}", labels, times, per_s * times)


def latencies(shares, per_s=1000.0, num_samples=240, every_s=STEP_S, name="inter_token_latency_seconds", **labels):
    """A histogram that grows evenly; shares of the buckets of `ITL_BOUNDS`."""
    shares = np.asarray([*shares, *[0.0] * (len(ITL_BOUNDS) - len(shares))])
    times = every_s * np.arange(num_samples)
    cumulative = np.cumsum(shares) / shares.sum()
    rows = [
        MetricSeries(f"vllm:{name}_bucket", {**labels, "le": str(le)}, times, per_s * part * times)
        for le, part in zip(ITL_BOUNDS, cumulative, strict=True)
    ]
    return [*rows, MetricSeries(f"vllm:{name}_count", labels, times, per_s * times)]


def server(running=40.0, waiting=0.0, kv_usage=0.6, num_samples=240, preemptions_per_s=0.0, tokens_per_s=1000.0,
           prompt_tokens_per_s=3000.0, requests_per_s=4.0, steps_per_s=25.0, seed=0, **labels):  # fmt: skip
    """An hour of a server; a number stands for a gauge that scatters a little around it."""
    generator = np.random.default_rng(seed)

    def over_time(value, spread):
        if np.ndim(value):
            return value
        return (
            np.maximum(0, value + spread * generator.standard_normal(num_samples)) if value else np.zeros(num_samples)
        )

    return [
        gauge("num_requests_running", np.round(over_time(running, np.sqrt(np.mean(running)))), **labels),
        gauge("num_requests_waiting", np.round(over_time(waiting, 1.0)), **labels),
        gauge("kv_cache_usage_perc", np.clip(over_time(kv_usage, 0.02), 0, 1), **labels),
        counter("num_preemptions_total", preemptions_per_s, num_samples, **labels),
        counter("generation_tokens_total", tokens_per_s, num_samples, **labels),
        counter("prompt_tokens_total", prompt_tokens_per_s, num_samples, **labels),
        counter("request_success_total", requests_per_s, num_samples, finished_reason="stop", **labels),
        counter("iteration_tokens_total_count", steps_per_s, num_samples, **labels),
    ]  # fmt: skip
