"""The JSON of `vllm bench throughput|serve|latency|sweep`: one object, a list of them, or one a line."""

from __future__ import annotations

from typing import Any

from maitre.bench_results.names import nested, number
from maitre.bench_results.records import Run
from maitre.bench_results.rows import merge_settings, read_row


def is_vllm_json(record: dict[str, Any]) -> bool:
    """Whether an object is a result of `vllm bench`, or the note that a sweep leaves of a failed run."""
    return _tool_of(record) is not None


def read_vllm_json(record: dict[str, Any], source: str) -> Run:
    """One run from the object that `vllm bench` stores.

    `--metadata KEY=VALUE` and the overrides of a sweep stand beside the figures in it, so dials come by themselves.
    """
    tool = _tool_of(record) or "vllm bench"
    if "error_type" in record:
        failure = f"{record['error_type']}: {record.get('error', '')}".strip()
        run = Run(source=source, tool=tool, failure=failure)
        return merge_settings(merge_settings(run, nested(record, "serve_overrides")), nested(record, "bench_overrides"))
    run = read_row(record, source, tool)
    if tool == "vllm bench throughput":
        # total_num_tokens = prompt + output in every version, so this rate is a total one though its key does not say
        run = run.model_copy(update={"total_tokens_per_s": run.tokens_per_s, "tokens_per_s": None})
    if tool == "vllm bench latency" and (mean_s := number(record["avg_latency"])) is not None:
        run = run.model_copy(update={"latencies": {"mean_e2el_ms": mean_s * 1e3}})
    return run


def _tool_of(record: dict[str, Any]) -> str | None:
    keys = record.keys()
    if {"request_throughput", "duration"} <= keys and not isinstance(record["request_throughput"], dict):
        return "vllm bench sweep" if "run_number" in keys else "vllm bench serve"
    if {"elapsed_time", "requests_per_second"} <= keys:
        return "vllm bench throughput"
    if {"error_type", "serve_overrides"} <= keys:
        return "vllm bench sweep"
    return "vllm bench latency" if {"avg_latency", "percentiles"} <= keys else None
