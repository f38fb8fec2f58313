"""The figures of one window of a server's metrics: load, traffic, speed and latency.

Several engines are one server here: what they count is added up, and so are the requests that run and wait in them; the
share of the KV cache in use is averaged. An engine that was there for a part of the window counts for that part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from maitre.metric_series import FloatArray, Histogram, MetricSeries, histogram, total_increase, within
from maitre.vllm.metric_families import INTER_TOKEN_LATENCY, KV_USAGE

PREFIX_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
PREFIX_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
PREFIX_HIT_RATE = ("vllm:gpu_prefix_cache_hit_rate",)
OUTPUT_TOKENS_PER_S = ("vllm:avg_generation_throughput_toks_per_s",)
PROMPT_TOKENS_PER_S = ("vllm:avg_prompt_throughput_toks_per_s",)
"""Gauges of V0, and what the periodic lines of a log say."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowFigures:
    """One window; None: the source does not expose it, or has fewer than two samples of it."""

    start_s: float
    end_s: float
    """The asked window, since the epoch; infinite where it was left open."""
    duration_s: float | None
    """From the first sample inside the window to the last one: what counters are divided by."""
    num_requests: float | None
    """Finished, whatever the reason."""
    arrivals: float | None
    """Finished ones, and what running and waiting grew by."""
    prompt_tokens: float | None
    """Mean of the finished requests."""
    output_tokens: float | None
    """Mean of the finished requests."""
    prompt_lengths: Histogram | None
    output_lengths: Histogram | None
    prefix_hit_rate: float | None
    """Share of the prompt tokens that the prefix cache had, 0 to 1."""
    running: float | None
    waiting: float | None
    """Requests, averaged over time and added up over engines."""
    waiting_share: float | None
    """Share of the samples in which a request waited, 0 to 1."""
    kv_usage: float | None
    """Averaged over time and engines, 0 to 1."""
    preemptions: float | None
    """How many there were."""
    output_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    num_steps: float | None
    """Steps of all engines, by the count of `vllm:iteration_tokens_total`."""
    itl: Histogram | None
    """Inter-token latency in seconds, one observation a token."""
    ttft: Histogram | None
    """Time to first token in seconds, one observation a request."""
    queue_time: Histogram | None
    """From arrival to the first step in seconds, one observation a request."""

    @property
    def rate_rps(self) -> float | None:
        """Finished requests a second."""
        return _ratio(self.num_requests, self.duration_s)

    @property
    def arrival_rps(self) -> float | None:
        """Requests that came in a second."""
        return _ratio(self.arrivals, self.duration_s)

    @property
    def preemptions_per_request(self) -> float | None:
        """Above 1 where requests are preempted more than once."""
        return _ratio(self.preemptions, self.num_requests)


def window_figures(series: Sequence[MetricSeries], start_s: float = -np.inf, end_s: float = np.inf) -> WindowFigures:
    """The figures of one window.

    Args:
        series: any, under vLLM's own names; several engines and servers may be among them.
        start_s: first moment that counts.
        end_s: last moment that counts; the next window may begin with it.
    """
    window = _Window(series, start_s, end_s)
    prompts = window.histogram("vllm:request_prompt_tokens")
    outputs = window.histogram("vllm:request_generation_tokens")
    finished = window.finished(prompts)
    return WindowFigures(
        start_s=start_s,
        end_s=end_s,
        duration_s=window.duration_s,
        num_requests=finished,
        arrivals=None if finished is None else max(0.0, finished + window.backlog_growth),
        prompt_tokens=window.mean_length("vllm:request_prompt_tokens"),
        output_tokens=window.mean_length("vllm:request_generation_tokens"),
        prompt_lengths=prompts,
        output_lengths=outputs,
        prefix_hit_rate=window.prefix_hit_rate,
        running=window.sum_of_means("vllm:num_requests_running"),
        waiting=window.sum_of_means("vllm:num_requests_waiting"),
        waiting_share=window.share_above_zero("vllm:num_requests_waiting"),
        kv_usage=window.mean(*KV_USAGE),
        preemptions=window.gain("vllm:num_preemptions_total"),
        output_tokens_per_s=window.per_s("vllm:generation_tokens_total", OUTPUT_TOKENS_PER_S),
        prompt_tokens_per_s=window.per_s("vllm:prompt_tokens_total", PROMPT_TOKENS_PER_S),
        num_steps=window.gain("vllm:iteration_tokens_total_count"),
        itl=window.histogram(*INTER_TOKEN_LATENCY),
        ttft=window.histogram("vllm:time_to_first_token_seconds"),
        queue_time=window.histogram("vllm:request_queue_time_seconds"),
    )


def figures_over_time(
    series: Sequence[MetricSeries], start_s: float, end_s: float, length_s: float
) -> tuple[WindowFigures, ...]:
    """The figures of successive sub-windows, each beginning with the sample that ends the one before.

    Args:
        series: any, under vLLM's own names.
        start_s: first moment that counts.
        end_s: last moment that counts.
        length_s: about how long each is; a rest shorter than half of that belongs to the one before.
    """
    times = np.unique(np.concatenate([one.time_s for one in series] or [np.array([])]))
    times = times[np.isfinite(times) & (times >= start_s) & (times <= end_s)]
    if len(times) < 2:
        return ()
    number = max(1, round((times[-1] - times[0]) / length_s))
    edges = np.linspace(times[0], times[-1], number + 1)
    bounds = np.unique(times[np.searchsorted(times, edges, side="right") - 1])
    return tuple(window_figures(series, float(a), float(b)) for a, b in pairwise(bounds))


class _Window:
    """The samples of one window, by name."""

    def __init__(self, series: Sequence[MetricSeries], start_s: float, end_s: float) -> None:
        self._bounds = (start_s, end_s)
        self._by_name: dict[str, list[MetricSeries]] = {}
        for one in series:
            self._by_name.setdefault(one.name, []).append(one)
        spans = [span for one in series if (span := self._span(one)) is not None]
        length_s = max(last for _, last in spans) - min(first for first, _ in spans) if spans else 0.0
        self.duration_s = float(length_s) if length_s > 0 else None

    def gain(self, *names: str) -> float | None:
        """What the first counter that is there went up by."""
        gains = (total_increase(self._by_name.get(name, []), *self._bounds) for name in names)
        return next((gain for gain in gains if gain is not None), None)

    def per_s(self, counter: str, gauges: Sequence[str]) -> float | None:
        """A counter's increase a second, or what a gauge says it was."""
        rate = _ratio(self.gain(counter), self.duration_s)
        return self.sum_of_means(*gauges) if rate is None else rate

    def finished(self, prompts: Histogram | None) -> float | None:
        """Requests that ended, by the counter of reasons or by the count of a histogram."""
        counted = self.gain("vllm:request_success_total", "vllm:e2e_request_latency_seconds_count")
        return prompts.count if counted is None and prompts is not None else counted

    def mean_length(self, family: str) -> float | None:
        """The exact mean of a histogram, which needs its sum and its count alone."""
        return _ratio(self.gain(f"{family}_sum"), self.gain(f"{family}_count"))

    def histogram(self, *families: str) -> Histogram | None:
        """The first family that counted something, else the first that is there."""
        present = []
        for family in families:
            parts = [*self._by_name.get(f"{family}_bucket", []), *self._by_name.get(f"{family}_sum", [])]
            if (one := histogram(parts, family, *self._bounds)) is not None:
                present.append(one)
        return next((one for one in present if one.count > 0), present[0] if present else None)

    @property
    def prefix_hit_rate(self) -> float | None:
        """From the counters, or what the gauge of V0 says."""
        rate = _ratio(self.gain(*PREFIX_HITS), self.gain(*PREFIX_QUERIES))
        return self.mean(*PREFIX_HIT_RATE) if rate is None else rate

    @property
    def backlog_growth(self) -> float:
        """By how many requests running and waiting grew, 0 where they are not exposed."""
        gauges = (self._by_name.get(f"vllm:num_requests_{state}", []) for state in ("running", "waiting"))
        return sum(float(values[-1] - values[0]) for one in gauges for s in one if len(values := self._inside(s)))

    def sum_of_means(self, *names: str) -> float | None:
        """A gauge over time, added up over engines, each by the part of the window that it was there."""
        weighed = self._weighed_means(names)
        return sum(weight * mean for weight, mean in weighed) if weighed else None

    def mean(self, *names: str) -> float | None:
        """A gauge over time, averaged over engines."""
        weighed = self._weighed_means(names)
        return _ratio(sum(weight * mean for weight, mean in weighed), sum(weight for weight, _ in weighed))

    def share_above_zero(self, name: str) -> float | None:
        """The share of a gauge's samples that are above 0."""
        samples = [values for one in self._by_name.get(name, []) if len(values := self._inside(one))]
        return float(np.mean(np.concatenate(samples) > 0)) if samples else None

    def _weighed_means(self, names: Sequence[str]) -> list[tuple[float, float]]:
        """Weight and mean of every series of the first name that has samples."""
        for name in names:
            found = [one for one in self._by_name.get(name, []) if len(self._inside(one))]
            if found:
                parts = [self._presence(one) for one in found]
                weights = parts if any(parts) else [1.0] * len(parts)
                return [(w, float(self._inside(one).mean())) for w, one in zip(weights, found, strict=True)]
        return []

    def _presence(self, one: MetricSeries) -> float:
        """The part of the window in which a series has samples."""
        span = self._span(one)
        return 1.0 if self.duration_s is None or span is None else (span[1] - span[0]) / self.duration_s

    def _span(self, one: MetricSeries) -> tuple[float, float] | None:
        """First and last moment with a sample inside the window."""
        start_s, end_s = self._bounds
        inside = one.time_s[(one.time_s >= start_s) & (one.time_s <= end_s)]
        return (float(inside[0]), float(inside[-1])) if len(inside) else None

    def _inside(self, one: MetricSeries) -> FloatArray:
        return within(one, *self._bounds)


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None
