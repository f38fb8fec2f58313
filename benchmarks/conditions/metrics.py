"""The metrics of a simulated server at the moments when it is scraped, under vLLM's names, labels and buckets.

When each family counts is that of `v1/metrics/stats.py` and `loggers.py` (0.32): tokens and gaps with every step's
output, the prompt when its prefill ends, what belongs to a request when it finishes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from conditions import buckets
from conditions.served import Served
from maitre.metric_series import MetricSeries

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FINISHED_REASONS = {"stop": 0.85, "length": 0.15, "abort": 0.0, "error": 0.0}
"""How requests end, as shares."""


def scrape_times(start_s: float, end_s: float, interval_s: float, generator: np.random.Generator) -> FloatArray:
    """When a server is scraped: at the interval, up to 2 % of it late; one scrape in 200 fails."""
    due = np.arange(start_s, end_s, interval_s)
    times: FloatArray = due + interval_s * 0.02 * generator.random(len(due))
    return times[generator.random(len(times)) >= 1 / 200]


def series_of(
    served: Served,
    scraped_s: FloatArray,
    place: str,
    epoch_s: float,
    generator: np.random.Generator,
) -> list[MetricSeries]:
    """Every series of the server.

    Args:
        served: what it did.
        scraped_s: ascending, seconds since the first moment of the traffic, shape (scrapes,).
        place: the label `instance`.
        epoch_s: that first moment, since the epoch.
        generator: of the reasons why requests finish.
    """
    names = {"engine": "0", "model_name": served.host.server.model, "instance": place, "job": "vllm"}
    samples = _Samples(served, scraped_s, names, epoch_s)
    _add_gauges(samples)
    _add_counters(samples, generator)
    _add_step_histograms(samples)
    _add_request_histograms(samples)
    return samples.series


class _Samples:
    """Collects series of one server; events are given by the step that brought them."""

    def __init__(self, served: Served, scraped_s: FloatArray, names: Mapping[str, str], epoch_s: float) -> None:
        self.served = served
        self.series: list[MetricSeries] = []
        self._names = names
        self._time_s = np.round(epoch_s + scraped_s, 3)
        self._scrape_of_step = np.searchsorted(scraped_s, served.step_end_s, side="left")
        self.last_step = np.searchsorted(served.step_end_s, scraped_s, side="right") - 1
        """The last step whose output was there at each scrape, −1 before the first."""

    def add(self, name: str, values: FloatArray, **labels: str) -> None:
        """One series, values of shape (scrapes,)."""
        self.series.append(MetricSeries(f"vllm:{name}", {**self._names, **labels}, self._time_s, values))

    def gauge(self, name: str, of_step: NDArray[np.generic]) -> None:
        """A gauge by its value after each step; 0 before the first."""
        values = np.where(self.last_step < 0, 0.0, of_step[np.maximum(self.last_step, 0)].astype(np.float64))
        self.add(name, values)

    def counter(self, name: str, steps: IntArray, amounts: FloatArray | None = None, **labels: str) -> None:
        """A counter by the steps at which it grew, and by how much (1 where nothing is said)."""
        self.add(name, self._cumulated(self._scrape_of_step[steps], amounts), **labels)

    def histogram(
        self, name: str, upper: Sequence[float], steps: IntArray, values: FloatArray, weights: FloatArray | None = None
    ) -> None:
        """A histogram by the steps at which values were observed, `weights` times each (once where nothing is said)."""
        scrape = self._scrape_of_step[steps]
        rows, columns = len(self._time_s) + 1, len(upper) + 1
        bucket = np.searchsorted(np.asarray(upper), values, side="left")
        cells = np.bincount(scrape * columns + bucket, weights, minlength=rows * columns)
        counts = cells.reshape(rows, columns)[:-1].cumsum(axis=0).cumsum(axis=1).astype(np.float64)
        for i, bound in enumerate((*upper, np.inf)):
            self.add(f"{name}_bucket", counts[:, i], le=format_bound(bound))
        self.add(f"{name}_count", counts[:, -1])
        self.add(f"{name}_sum", self._cumulated(scrape, values if weights is None else values * weights))

    def _cumulated(self, scrape: IntArray, amounts: FloatArray | None) -> FloatArray:
        total: FloatArray = np.bincount(scrape, amounts, minlength=len(self._time_s) + 1)[:-1].cumsum()
        return total.astype(np.float64)


def format_bound(bound: float) -> str:
    """A bucket's label as the Python client writes it: `0.025`, `1.0`, `+Inf`."""
    return "+Inf" if np.isinf(bound) else repr(float(bound))


def _add_gauges(samples: _Samples) -> None:
    served = samples.served
    samples.gauge("num_requests_running", served.running)
    samples.gauge("num_requests_waiting", served.waiting)
    samples.gauge("kv_cache_usage_perc", served.kv_usage)
    server, host = served.host.server, served.host
    labels = {
        "block_size": server.block_size,
        "cache_dtype": server.kv_cache_dtype,
        "enable_prefix_caching": server.enable_prefix_caching,
        "gpu_memory_utilization": server.gpu_memory_utilization,
        "num_cpu_blocks": None,
        "num_gpu_blocks": host.num_gpu_blocks,
        "num_gpu_blocks_override": host.num_gpu_blocks if host.is_pool_overridden else None,
        "kv_cache_size_tokens": host.kv_tokens,
        "kv_cache_max_concurrency": round(host.kv_tokens / server.max_model_len, 4),
    }
    written = {name: str(value) for name, value in labels.items()}
    samples.add("cache_config_info", np.ones(len(samples.last_step)), **written)


def _add_counters(samples: _Samples, generator: np.random.Generator) -> None:
    served, replay = samples.served, samples.served.replay
    prompt = served.workload.prompt_tokens.astype(np.float64)
    every_step = np.arange(replay.num_steps)
    samples.counter("num_preemptions_total", every_step, replay.columns["num_preemptions"].astype(np.float64))
    samples.counter("prompt_tokens_total", replay.first_token_step, prompt)
    samples.counter("generation_tokens_total", every_step, output_tokens_per_step(served))
    asked = prompt * served.host.server.enable_prefix_caching  # without the cache both stay 0
    samples.counter("prefix_cache_queries_total", replay.first_scheduled_step, asked)
    samples.counter("prefix_cache_hits_total", replay.first_scheduled_step, replay.num_cached_tokens.astype(float))
    reasons = generator.choice(len(FINISHED_REASONS), len(prompt), p=[*FINISHED_REASONS.values()])
    for i, reason in enumerate(FINISHED_REASONS):
        samples.counter("request_success_total", replay.last_token_step[reasons == i], finished_reason=reason)


def output_tokens_per_step(served: Served) -> FloatArray:
    """Output tokens that came out of each step, shape (m,)."""
    replay = served.replay
    tokens = replay.columns["num_steady_decodes"].astype(np.float64)
    for steps in (replay.token_gaps[:, 1], replay.first_token_step):
        tokens += np.bincount(steps, minlength=replay.num_steps)
    return tokens


def token_gaps(served: Served) -> tuple[IntArray, FloatArray, FloatArray]:
    """Inter-token latencies: the steps that ended them, their seconds, and how often each occurred."""
    replay, end_s = served.replay, served.step_end_s
    steady = replay.columns["num_steady_decodes"]
    busy = np.flatnonzero(steady)
    before, after = replay.token_gaps.T
    steps = np.concatenate([busy, after])
    seconds = np.concatenate([end_s[busy] - served.step_start_s[busy], end_s[after] - end_s[before]])
    return steps, seconds, np.concatenate([steady[busy].astype(np.float64), np.ones(len(after))])


def _add_step_histograms(samples: _Samples) -> None:
    served, replay = samples.served, samples.served.replay
    samples.histogram("inter_token_latency_seconds", buckets.ITL_S, *token_gaps(served))
    output = output_tokens_per_step(served)
    computed = served.workload.prompt_tokens - replay.num_cached_tokens
    tokens = output + np.bincount(replay.first_token_step, weights=computed, minlength=replay.num_steps)
    speaking = np.flatnonzero(output)  # a step that only computes a chunk brings no output, and is not counted
    samples.histogram("iteration_tokens_total", buckets.ITERATION_TOKENS, speaking, tokens[speaking])


def _add_request_histograms(samples: _Samples) -> None:
    served, replay, workload = samples.served, samples.served.replay, samples.served.workload
    arrival_s, scheduled_s = served.arrival_s, served.scheduled_s
    first_s, last_s = served.step_end_s[replay.first_token_step], served.step_end_s[replay.last_token_step]
    finished = replay.last_token_step
    samples.histogram("time_to_first_token_seconds", buckets.TTFT_S, replay.first_token_step, first_s - arrival_s)
    times = {
        "e2e_request_latency": last_s - arrival_s,
        "request_queue_time": scheduled_s - arrival_s,
        "request_prefill_time": first_s - scheduled_s,
        "request_decode_time": last_s - first_s,
    }
    for name, seconds in times.items():
        samples.histogram(f"{name}_seconds", buckets.LATENCY_S, finished, seconds)
    upper = buckets.request_tokens(served.host.server.max_model_len)
    samples.histogram("request_prompt_tokens", upper, finished, workload.prompt_tokens.astype(np.float64))
    samples.histogram("request_generation_tokens", upper, finished, workload.output_tokens.astype(np.float64))
