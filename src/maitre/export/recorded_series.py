"""What is recorded of a deployment: the series that the alerts compare, and those that people ask for."""

from __future__ import annotations

from maitre.export.queries import quantile
from maitre.slo import LatencyTarget

RECORDED = {
    "vllm_num_requests_running:sum_avg5m": "sum by (@by) (avg_over_time(@running[5m]))",
    "vllm_num_requests_running:max_avg5m": "max by (@by) (avg_over_time(@running[5m]))",
    "vllm_num_requests_waiting:max_avg10m": "max by (@by) (avg_over_time(@waiting[10m]))",
    "vllm_num_preemptions:max_per_minute10m": "60 * max by (@by) (rate(@preemptions[10m]))",
    "vllm_kv_cache_usage:max_avg5m": "max by (@by) (avg_over_time(@kv_usage[5m]))",
    "vllm_itl:p50_10m": quantile("itl", 50, "10m"),
    "vllm_itl:p99_10m": quantile("itl", 99, "10m"),
    "vllm_ttft:p50_10m": quantile("ttft", 50, "10m"),
    "vllm_ttft:p95_10m": quantile("ttft", 95, "10m"),
    "vllm_queue:p95_10m": quantile("queue", 95, "10m"),
    "vllm_prompt_tokens:rate5m": "sum by (@by) (rate(@prompt_tokens[5m]))",
    "vllm_generation_tokens:rate5m": "sum by (@by) (rate(@generation_tokens[5m]))",
    "vllm_requests_finished:rate5m": "sum by (@by, finished_reason) (rate(@finished[5m]))",
    "vllm_prefix_cache:hit_ratio30m": "sum by (@by) (rate(@hits[30m])) / sum by (@by) (rate(@queries[30m]))",
}
"""What is recorded, by `metric:operations`. The two limits are an engine's, so waiting, preemptions and the KV cache
are those of the worst engine."""


def recorded(targets: tuple[LatencyTarget, ...]) -> dict[str, str]:
    """The recorded series, with the percentiles that latency targets speak of."""
    percentiles = {f"vllm_{t.metric}:p{t.percent}_10m": quantile(t.metric, t.percent, "10m") for t in targets}
    return RECORDED | percentiles
