"""The past of vLLM servers as OpenMetrics text: constant rates, so that every increase is known.

Load it by its path, as servers.py.
"""

LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
BUCKETS = {
    "inter_token_latency_seconds": (
        0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
    ),
    "time_to_first_token_seconds": (
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640,
        2560,
    ),
    "request_queue_time_seconds": LATENCY,
    "e2e_request_latency_seconds": LATENCY,
    "request_inference_time_seconds": LATENCY,
    "request_prefill_time_seconds": LATENCY,
    "request_decode_time_seconds": LATENCY,
    "request_prompt_tokens": TOKENS,
    "request_generation_tokens": TOKENS,
    "request_params_max_tokens": TOKENS,
    "iteration_tokens_total": (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
}  # fmt: skip
"""Of vLLM 0.32 with a max_model_len of 131072."""
RATES = {
    "prompt_tokens_total": 500.0,
    "generation_tokens_total": 250.0,
    "num_preemptions_total": 0.01,
    "prefix_cache_queries_total": 500.0,
    "prefix_cache_hits_total": 100.0,
}
"""Per second."""
REQUESTS_RPS = 1.0
"""Of each histogram; its observations are spread evenly over the buckets."""


def lives(instance, *spans, model_name="m", **labels):
    """A server and the spans of time (start, end) of its processes: each counts from zero."""
    return {"instance": instance, "model_name": model_name, "engine": "0", **labels}, spans


def write_history(servers, start_s, end_s, interval_s, prefix="vllm:", families=tuple(BUCKETS)):
    """OpenMetrics text without its end mark.

    Args:
        servers: what `lives` gives.
        start_s: the first scrape.
        end_s: no scrape after it.
        interval_s: between two scrapes.
        prefix: of all names.
        families: the histograms that are exposed.
    """
    return "\n".join(
        line
        for labels, spans in servers
        for begin_s, finish_s in spans
        for line in _life(labels, begin_s, finish_s, (start_s, end_s, interval_s), prefix, families)
    )


def _life(labels, begin_s, finish_s, scrapes, prefix, families):
    start_s, end_s, interval_s = scrapes
    written = ",".join(f'{key}="{value}"' for key, value in labels.items())
    where = ",".join(f'{key}="{value}"' for key, value in labels.items() if key != "model_name")
    for i in range(int((end_s - start_s) / interval_s) + 1):
        moment_s = start_s + i * interval_s
        if not begin_s <= moment_s <= finish_s:
            continue
        age_s = moment_s - begin_s
        yield f"{prefix}num_requests_running{{{written}}} {8 + i % 5} {moment_s}"
        yield f"{prefix}num_requests_waiting{{{written}}} {i % 3} {moment_s}"
        yield f"{prefix}kv_cache_usage_perc{{{written}}} 0.5 {moment_s}"
        yield f'{prefix}cache_config_info{{{where},block_size="16",num_gpu_blocks="9000"}} 1 {moment_s}'
        yield f'{prefix}request_success_total{{{written},finished_reason="stop"}} {age_s * REQUESTS_RPS} {moment_s}'
        for name, rate in RATES.items():
            yield f"{prefix}{name}{{{written}}} {age_s * rate} {moment_s}"
        for family in families:
            yield from _buckets(prefix + family, BUCKETS[family], written, age_s * REQUESTS_RPS, moment_s)


def _buckets(name, bounds, written, count, moment_s):
    for i, le in enumerate((*bounds, "+Inf"), 1):
        yield f'{name}_bucket{{{written},le="{le}"}} {count * i / (len(bounds) + 1)} {moment_s}'
    yield f"{name}_count{{{written}}} {count} {moment_s}"
    yield f"{name}_sum{{{written}}} {count * 100} {moment_s}"
