"""GuideLLM: `benchmarks.json` of 0.2 to 0.8 (one run a stage), and the progress lines of a sweep."""

from __future__ import annotations

import re
from typing import Any

from maitre.bench_results.names import count, nested, number
from maitre.bench_results.records import Run

_PROGRESS = re.compile(
    r"\[\d\d:\d\d:\d\d\]\s+\S*\s+(synchronous|throughput|concurrent|constant|poisson)(?:@(\d+(?:\.\d+)?)(?: req/s)?)?"
    r"\S*\s.*?\((\d+(?:\.\d+)?)\s+req/sec(?: avg)?"
)
_COMPLETED = re.compile(
    r"Benchmark \d+ \((\w+)(?:@(\d+(?:\.\d+)?))?\): completed .*?successful=(\d+) errored=(\d+) incomplete=(\d+)"
    r".*?requests/s=(\d+(?:\.\d+)?) output_tokens/s=(\d+(?:\.\d+)?)"
)
"""The log of 0.8."""
_AT_ONCE = {"throughput", "concurrent"}
"""Stages whose name ends in the requests in flight; others end in the rate."""
# Distributions by successful, errored, incomplete and total requests. The rates are time-weighted means over the
# measured window, not totals over duration, and differ from those by a per cent or so.
_RATES = {
    "requests_per_s": "requests_per_second",
    "output_tokens_per_s": "output_tokens_per_second",
    "total_tokens_per_s": "tokens_per_second",
}
_LATENCIES = {
    "ttft": ("time_to_first_token_ms", 1.0),
    "tpot": ("inter_token_latency_ms", 1.0),
    "e2el": ("request_latency", 1e3),
}
# Its inter-token latency is one mean a request, first token excluded: what vLLM calls TPOT. Its own
# `time_per_output_token_ms` counts the first token in and is left out.


def is_guidellm(value: Any) -> bool:
    """Whether a JSON value is GuideLLM's report."""
    if not isinstance(value, dict) or not isinstance(value.get("benchmarks"), list):
        return False
    return all(isinstance(stage, dict) and "metrics" in stage for stage in value["benchmarks"])


def read_guidellm(value: dict[str, Any], source: str) -> list[Run]:
    """A run a stage of the report (synchronous, throughput, constant@1.00 and so on)."""
    stages = value["benchmarks"]
    return [
        _read_stage(stage, source if len(stages) == 1 else f"{source}, stage {position}")
        for position, stage in enumerate(stages, 1)
    ]


def read_guidellm_progress(text: str, source: str) -> list[Run]:
    """A run a finished stage in the lines of progress; none when the text has no such line."""
    stages = [(stage, load, {"requests_per_s": number(speed)}) for stage, load, speed in _PROGRESS.findall(text)]
    for stage, load, *counts, speed, tokens in _COMPLETED.findall(text):
        figures: dict[str, float | None] = {"requests_per_s": number(speed)}
        figures["output_tokens_per_s"] = number(tokens)
        figures |= dict(zip(("successful", "failed", "incomplete"), map(count, counts), strict=True))
        stages.append((stage, load, figures))
    return [
        Run(
            source=f"{source}, stage {position}",
            tool="GuideLLM",
            label=f"{stage}@{load}" if load else stage,
            stage=stage,
            **_load_of(
                stage, {"rate": load, "streams": load} | ({"max_concurrency": load} if stage in _AT_ONCE else {})
            ),
            **figures,
        )
        for position, (stage, load, figures) in enumerate(stages, 1)
    ]


def _read_stage(stage: dict[str, Any], source: str) -> Run:
    config = nested(stage, "config") or nested(stage, "args")  # 0.4 and later, or before
    strategy = nested(config, "strategy")
    kind = str(strategy.get("type_") or "unknown")
    metrics = nested(stage, "metrics")
    totals = nested(metrics, "request_totals") or nested(stage, "request_totals")
    load = _load_of(kind, strategy)
    rate = f"@{number(load['request_rate']):g}" if number(load["request_rate"]) is not None else ""
    return Run(
        source=source,
        tool="GuideLLM",
        label=kind + rate,
        stage=kind,
        num_requests=count(totals.get("total")),
        successful=count(totals.get("successful")),
        failed=count(totals.get("errored")),
        incomplete=count(totals.get("incomplete")),
        duration_s=number(stage.get("duration")),
        total_input_tokens=_sum(metrics, "prompt_token_count"),
        total_output_tokens=_sum(metrics, "output_token_count"),
        peak_concurrency=count(_done(metrics, "request_concurrency").get("max")),
        latencies=_latencies_of(metrics),
        **load,
        **{field: number(_done(metrics, name).get("mean")) for field, name in _RATES.items()},
    )


def _load_of(kind: str, strategy: dict[str, Any]) -> dict[str, Any]:
    if kind == "synchronous":
        return {"concurrency": 1, "request_rate": None}
    if kind == "concurrent":
        return {"concurrency": count(strategy.get("streams")), "request_rate": None}
    concurrency = count(strategy.get("max_concurrency"))
    return {"concurrency": concurrency, "request_rate": "inf" if kind == "throughput" else number(strategy.get("rate"))}


def _latencies_of(metrics: dict[str, Any]) -> dict[str, float]:
    latencies = {}
    for short, (name, to_ms) in _LATENCIES.items():
        spread = _done(metrics, name)
        figures = {"mean": spread.get("mean"), "median": spread.get("median")}
        figures |= {p: nested(spread, "percentiles").get(p) for p in ("p95", "p99")}
        for which, value in figures.items():
            if (found := number(value)) is not None:
                latencies[f"{which}_{short}_ms"] = found * to_ms
    return latencies


def _done(metrics: dict[str, Any], name: str) -> dict[str, Any]:
    """The distribution over the requests that succeeded."""
    return nested(nested(metrics, name), "successful")


def _sum(metrics: dict[str, Any], name: str) -> int | None:
    total = number(_done(metrics, name).get("total_sum"))
    return None if total is None else round(total)
