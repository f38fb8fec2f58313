"""The metric families of vLLM 0.4.2 to 0.33.0, and what became of those that are gone.

Read in `engine/metrics.py` (V0), `v1/metrics/loggers.py`, `v1/spec_decode/metrics.py` and `v1/metrics/perf.py` of 53
releases; a version is the first or last one *read* in which it holds. For `tokens_total`, `lora_requests_info`,
`request_params_best_of`, `watermark_requests_total` and speculative decoding the span is right to some releases only.
Families of KV connectors are not listed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram", "info"]


class Family(NamedTuple):
    """One family."""

    name: str
    """As its samples are called, without `_bucket`, `_sum`, `_count`: `vllm:num_preemptions_total`."""
    kind: Kind
    """An info is a gauge of 1 whose labels speak."""
    first: str
    """The first version that has it, in either engine."""
    last: str | None = None
    """The last one that has it; None: 0.33 still does."""
    successor: str | None = None
    """What says the same in later versions."""
    hidden_since: str | None = None
    """From this version on only --show-hidden-metrics-for-version shows it."""


_ITL = "vllm:inter_token_latency_seconds"
_QUEUE = "vllm:request_queue_time_seconds"
_HITS, _QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"

FAMILIES: tuple[Family, ...] = (
    # The scheduler's state.
    Family("vllm:num_requests_running", "gauge", "0.4.2"),
    Family("vllm:num_requests_waiting", "gauge", "0.4.2"),
    Family("vllm:num_requests_waiting_by_reason", "gauge", "0.20"),
    Family("vllm:num_requests_kv_fetch_by_stage", "gauge", "0.32"),
    Family("vllm:num_requests_swapped", "gauge", "0.4.2", "0.9.0"),
    Family("vllm:kv_cache_usage_perc", "gauge", "0.9.2"),
    Family("vllm:gpu_cache_usage_perc", "gauge", "0.4.2", "0.11.2", "vllm:kv_cache_usage_perc", "0.11.0"),
    Family("vllm:cpu_cache_usage_perc", "gauge", "0.4.2", "0.9.0"),
    Family("vllm:cache_config_info", "info", "0.5.5"),
    Family("vllm:lora_requests_info", "info", "0.6.4"),
    Family("vllm:engine_sleep_state", "gauge", "0.11.1"),
    Family("vllm:watermark_requests_total", "counter", "0.32"),
    Family("vllm:corrupted_requests_total", "counter", "0.11.1"),
    Family("vllm:num_preemptions_total", "counter", "0.5.0"),
    Family("vllm:request_num_preemptions", "histogram", "0.30"),
    Family("vllm:admission_rejections_total", "counter", "0.32"),
    # Tokens and steps.
    Family("vllm:prompt_tokens_total", "counter", "0.4.2"),
    Family("vllm:generation_tokens_total", "counter", "0.4.2"),
    Family("vllm:tokens_total", "counter", "0.6.4", "0.9.0"),
    Family("vllm:prompt_tokens_by_source_total", "counter", "0.16"),
    Family("vllm:prompt_tokens_cached_total", "counter", "0.16"),
    Family("vllm:prompt_tokens_cached_by_source_total", "counter", "0.32"),
    Family("vllm:iteration_tokens_total", "histogram", "0.6.4"),
    Family("vllm:avg_prompt_throughput_toks_per_s", "gauge", "0.4.2", "0.6.6", "vllm:prompt_tokens_total"),
    Family("vllm:avg_generation_throughput_toks_per_s", "gauge", "0.4.2", "0.6.6", "vllm:generation_tokens_total"),
    # Caches.
    Family("vllm:prefix_cache_queries_total", "counter", "0.9.2"),
    Family("vllm:prefix_cache_hits_total", "counter", "0.9.2"),
    Family("vllm:gpu_prefix_cache_queries_total", "counter", "0.7.3", "0.11.2", _QUERIES, "0.11.0"),
    Family("vllm:gpu_prefix_cache_hits_total", "counter", "0.7.3", "0.11.2", _HITS, "0.11.0"),
    Family("vllm:gpu_prefix_cache_hit_rate", "gauge", "0.5.5", "0.9.0", _HITS),
    Family("vllm:cpu_prefix_cache_hit_rate", "gauge", "0.5.5", "0.9.0"),
    Family("vllm:external_prefix_cache_queries_total", "counter", "0.11.1"),
    Family("vllm:external_prefix_cache_hits_total", "counter", "0.11.1"),
    Family("vllm:mm_cache_queries_total", "counter", "0.11.1"),
    Family("vllm:mm_cache_hits_total", "counter", "0.11.1"),
    Family("vllm:kv_block_lifetime_seconds", "histogram", "0.12"),
    Family("vllm:kv_block_idle_before_evict_seconds", "histogram", "0.12"),
    Family("vllm:kv_block_reuse_gap_seconds", "histogram", "0.12"),
    # Requests and their times.
    Family("vllm:request_success_total", "counter", "0.4.2"),
    Family("vllm:time_to_first_token_seconds", "histogram", "0.4.2"),
    Family("vllm:inter_token_latency_seconds", "histogram", "0.10.2"),
    Family("vllm:time_per_output_token_seconds", "histogram", "0.4.2", "0.14.1", _ITL, "0.12"),
    Family("vllm:request_time_per_output_token_seconds", "histogram", "0.11.0"),
    Family("vllm:e2e_request_latency_seconds", "histogram", "0.4.2"),
    Family("vllm:request_queue_time_seconds", "histogram", "0.6.4"),
    Family("vllm:request_inference_time_seconds", "histogram", "0.6.4"),
    Family("vllm:request_prefill_time_seconds", "histogram", "0.6.4"),
    Family("vllm:request_decode_time_seconds", "histogram", "0.6.4"),
    Family("vllm:time_in_queue_requests", "histogram", "0.6.4", "0.9.0", _QUEUE),
    Family("vllm:model_forward_time_milliseconds", "histogram", "0.6.4", "0.9.0"),
    Family("vllm:model_execute_time_milliseconds", "histogram", "0.6.4", "0.9.0"),
    Family("vllm:request_prompt_tokens", "histogram", "0.4.2"),
    Family("vllm:request_generation_tokens", "histogram", "0.4.2"),
    Family("vllm:request_prefill_kv_computed_tokens", "histogram", "0.13"),
    Family("vllm:request_max_num_generation_tokens", "histogram", "0.6.4"),
    Family("vllm:request_params_n", "histogram", "0.4.2"),
    Family("vllm:request_params_best_of", "histogram", "0.4.2", "0.6.6"),
    Family("vllm:request_params_max_tokens", "histogram", "0.6.4"),
    # Speculative decoding and work done.
    Family("vllm:spec_decode_num_drafts_total", "counter", "0.8.3"),
    Family("vllm:spec_decode_num_draft_tokens_total", "counter", "0.4.2"),
    Family("vllm:spec_decode_num_accepted_tokens_total", "counter", "0.4.2"),
    Family("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter", "0.8.3"),
    Family("vllm:spec_decode_num_emitted_tokens_total", "counter", "0.4.2", "0.9.0"),
    Family("vllm:spec_decode_draft_acceptance_rate", "gauge", "0.4.2", "0.9.0"),
    Family("vllm:spec_decode_efficiency", "gauge", "0.4.2", "0.9.0"),
    Family("vllm:estimated_flops_per_gpu_total", "counter", "0.17"),
    Family("vllm:estimated_read_bytes_per_gpu_total", "counter", "0.17"),
    Family("vllm:estimated_write_bytes_per_gpu_total", "counter", "0.17"),
)  # fmt: skip

NEVER_EXPOSED: dict[str, str] = {
    "vllm:num_waiting_seqs": "vllm:num_requests_waiting",
    "vllm:num_waiting_requests": "vllm:num_requests_waiting",
    "vllm:num_waiting": "vllm:num_requests_waiting",
    "vllm:num_running_seqs": "vllm:num_requests_running",
    "vllm:num_running_requests": "vllm:num_requests_running",
    "vllm:num_running": "vllm:num_requests_running",
    "vllm:num_swapped_seqs": "vllm:num_requests_swapped",
    "vllm:num_preempted": "vllm:num_preemptions_total",
    "vllm:num_preempted_requests": "vllm:num_preemptions_total",
    "vllm:num_preempted_requests_total": "vllm:num_preemptions_total",
    "vllm:gpu_kv_cache_usage": "vllm:kv_cache_usage_perc",
    "vllm:gpu_kv_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm:kv_cache_usage": "vllm:kv_cache_usage_perc",
    "vllm:kv_cache_usage_ratio": "vllm:kv_cache_usage_perc",
}
"""Names of articles, dashboards and alert rules that no version has, and what they mean; none of them is ambiguous."""

BY_NAME: dict[str, Family] = {family.name: family for family in FAMILIES}

KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""Gauges from 0 to 1, the newer name first; it is there from 0.9.2 on."""
INTER_TOKEN_LATENCY = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
"""Both observe the time between two tokens of one sequence; the old one was shown up to vLLM 0.11 and is gone in 0.15.
The first that has counted anything is taken, never both: 0.10.2 and 0.11 expose the two side by side."""
