"""AIPerf and its predecessor GenAI-Perf: `profile_export_*.json` and `.csv`."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from maitre.bench_results.names import count, nested, number
from maitre.bench_results.records import Run
from maitre.errors import InputError

_HEAD_CHARACTERS = 200
_LATENCIES = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2el"}
# Their inter-token latency is (latency - TTFT) / (tokens - 1) of each request: what vLLM calls TPOT.
_STATISTICS = {"avg": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_TO_MS = {"ms": 1.0, "sec": 1e3, "s": 1e3, "us": 1e-3, "ns": 1e-6}
_TO_S = {unit: to_ms / 1e3 for unit, to_ms in _TO_MS.items()}


def is_aiperf(value: Any) -> bool:
    """Whether a JSON value is the profile that AIPerf or GenAI-Perf exports."""
    return isinstance(value, dict) and any(
        isinstance(value.get(name), dict) and "avg" in value[name] for name in ("request_throughput", "request_latency")
    )


def read_aiperf(value: dict[str, Any], source: str) -> Run:
    """One run from a JSON profile."""
    tool = "AIPerf" if "aiperf_version" in value or "error_summary" in value else "GenAI-Perf"
    run_info, config = nested(value, "run_info"), nested(value, "input_config")
    return Run(
        source=source,
        tool=tool,
        label=run_info.get("run_label") or run_info.get("variation_label"),
        failure=_failure_of(value),
        **_load_of(config),
        **_figures_of(value),
    )


def read_aiperf_csv(text: str, source: str) -> list[Run]:
    """The run of a CSV profile, two tables in one file; none when the text is no such file.

    Raises:
        InputError: it begins as one, and is no CSV.
    """
    head = next(csv.reader(text[:_HEAD_CHARACTERS].splitlines()[:1]), [])
    if head[:2] not in (["Metric", "avg"], ["Metric", "Value"]):
        return []
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        lines = list(reader)
    except csv.Error as error:
        raise InputError(f"{source}, line {reader.line_num}: not CSV ({error})", "export the profile again") from None
    metrics: dict[str, dict[str, Any]] = {}
    header: list[str] = []
    for line in lines:
        if line[:1] == ["Metric"]:
            header = ["avg" if name == "Value" else name for name in line[1:]]
        elif len(line) > 1 and (match := re.fullmatch(r"([^()]+?)(?: \(([^)]*)\))?", line[0])):
            tag = re.sub(r"[ -]+", "_", match[1].strip().lower())
            figures = {name: number(value) for name, value in zip(header, line[1:], strict=False)}
            metrics.setdefault(tag, figures | {"unit": match[2]})
    return [Run(source=source, tool="AIPerf", **_figures_of(metrics))]


def _figures_of(metrics: dict[str, Any]) -> dict[str, Any]:
    latencies = {}
    for name, short in _LATENCIES.items():
        spread = nested(metrics, name)
        to_ms = _TO_MS.get(str(spread.get("unit")), 1.0)
        for statistic, which in _STATISTICS.items():
            if (value := number(spread.get(statistic))) is not None:
                latencies[f"{which}_{short}_ms"] = value * to_ms
    successful, failed = count(_mean(metrics, "request_count")), count(_mean(metrics, "error_request_count"))
    lengths = {name: _mean(metrics, tag) for name, tag in _LENGTHS.items()}
    sums = {name: count(_mean(metrics, tag)) for name, tag in _TOTALS.items()}
    for name, mean in lengths.items():
        if sums[name] is None and mean is not None and successful:
            sums[name] = round(mean * successful)
    duration = _mean(metrics, "benchmark_duration")
    unit = _TO_S.get(str(nested(metrics, "benchmark_duration").get("unit")), 1.0)
    return {
        "latencies": latencies,
        "successful": successful,
        "failed": failed,
        "duration_s": None if duration is None else duration * unit,
        "requests_per_s": _mean(metrics, "request_throughput"),
        "output_tokens_per_s": _mean(metrics, "output_token_throughput"),
        "total_tokens_per_s": _mean(metrics, "total_token_throughput"),
        **sums,
    }


_TOTALS = {"total_input_tokens": "total_isl", "total_output_tokens": "total_osl"}
_LENGTHS = {"total_input_tokens": "input_sequence_length", "total_output_tokens": "output_sequence_length"}


def _load_of(config: dict[str, Any]) -> dict[str, Any]:
    """The client's load: `loadgen` (AIPerf until 0.7), the profiling phase (later), `perf_analyzer` (GenAI-Perf)."""
    phases = config.get("phases")
    places = [
        nested(config, "loadgen"),
        nested(nested(config, "perf_analyzer"), "stimulus"),
        nested(config, "profiling"),
    ]
    places += (
        [p for p in phases if isinstance(p, dict) and p.get("name") != "warmup"] if isinstance(phases, list) else []
    )
    load: dict[str, Any] = {}
    for place in places:
        for field, names in {"concurrency": ("concurrency",), "request_rate": ("request_rate", "rate")}.items():
            found = next((value for name in names if (value := number(place.get(name))) is not None), None)
            if found is not None:
                load.setdefault(field, int(found) if field == "concurrency" else found)
    return load


def _failure_of(value: dict[str, Any]) -> str | None:
    if value.get("was_cancelled"):
        return "the run was cancelled"
    if value.get("is_complete") is False:
        return f"the run is incomplete: {value.get('incomplete_reason') or 'no reason given'}"
    return None


def _mean(metrics: dict[str, Any], name: str) -> float | None:
    return number(nested(metrics, name).get("avg"))
