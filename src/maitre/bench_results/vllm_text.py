"""What `vllm bench throughput|serve|latency` and the scripts before them print, from 2023 to 0.33."""

from __future__ import annotations

import re
from typing import Any

from maitre.bench_results.names import number
from maitre.bench_results.records import Run
from maitre.bench_results.rows import merge_settings

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NUMBER = r"(-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|inf|nan)"

# The serve block's labels; the case of `Total Token throughput` changed in 0.14, the rest is stable.
_SERVE = {
    "successful requests": "successful",
    "failed requests": "failed",
    "maximum request concurrency": "concurrency",
    "request rate configured (rps)": "request_rate",
    "benchmark duration (s)": "duration_s",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "request throughput (req/s)": "requests_per_s",
    "output token throughput (tok/s)": "output_tokens_per_s",
    "peak output token throughput (tok/s)": "peak_output_tokens_per_s",
    "peak concurrent requests": "peak_concurrency",
    "total token throughput (tok/s)": "total_tokens_per_s",
}
_SERVE_LINE = re.compile(rf"({'|'.join(map(re.escape, _SERVE))}):\s+{_NUMBER}(?=\s|$)", re.IGNORECASE)
_LATENCY_LINE = re.compile(rf"\b(Mean|Median|P\d\d|Std) (TTFT|TPOT|ITL|E2EL) \(ms\):\s+{_NUMBER}", re.IGNORECASE)
_HEADER = re.compile(r"={3,}\s*Serving Benchmark Result\s*={3,}")

_THROUGHPUT = re.compile(
    rf"\bThroughput: {_NUMBER} requests/s(?:, {_NUMBER} (total )?tokens/s)?(?:, {_NUMBER} output tokens/s)?"
)
_OFFLINE = (
    ("duration_s", re.compile(rf"\bTotal time: {_NUMBER} s\b")),
    ("mean_e2el_ms", re.compile(rf"\bAverage latency: {_NUMBER} s\b")),
    ("mean_e2el_ms", re.compile(rf"\bAvg latency: {_NUMBER} seconds\b")),
    ("total_input_tokens", re.compile(rf"\bTotal num prompt tokens:\s+{_NUMBER}")),
    ("total_output_tokens", re.compile(rf"\bTotal num output tokens:\s+{_NUMBER}")),
)
_SAID = re.compile(
    r"(?<![\w-])(?:--)?['\"]?(max[_-]num[_-](?:seqs|batched[_-]tokens)|tensor[_-]parallel[_-]size|max[_-]model[_-]len"
    r"|gpu[_-]memory[_-]utilization|num[_-]prompts|max[_-]concurrency|request[_-]rate|kv[_-]cache[_-]dtype)['\"]?"
    r"\s*[=: ]\s*['\"]?([\w.]+)"
)
_WHOLE = {"successful", "failed", "concurrency", "peak_concurrency", "total_input_tokens", "total_output_tokens"}
_AFTER_RESULT = {"total_input_tokens", "total_output_tokens"}


def read_vllm_text(text: str, source: str) -> list[Run]:
    """Every result block of a print-out or a log, in order; none when the text has no such line.

    Dials are taken from what is printed before a block: `Namespace(…)`, `non-default args`, or the command line.
    """
    runs: list[Run] = []
    said: dict[str, str] = {}
    figures: dict[str, Any] = {}
    said_before: dict[str, str] = {}
    for line in _ANSI.sub("", text).splitlines():
        said |= {name.replace("-", "_"): value for name, value in _SAID.findall(line) if value != "None"}
        found = _figures_of(line)
        if figures and (_HEADER.search(line) or figures.keys() & found.keys()):
            runs.append(_finish(figures, said_before, f"{source}, result {len(runs) + 1}"))
            figures = {}
        if found and not figures:  # what is said from here on belongs to the next block
            said_before = dict(said)
        figures |= found
    if figures:
        runs.append(_finish(figures, said_before, f"{source}, result {len(runs) + 1}" if runs else source))
    return runs


def _figures_of(line: str) -> dict[str, Any]:
    """The figures of one line by field name; latencies by their own."""
    if match := _SERVE_LINE.search(line):
        field = _SERVE[match[1].lower()]
        if field == "request_rate" and match[2] == "inf":
            return {field: "inf"}
        return {field: _number(match[2], whole=field in _WHOLE)}
    if match := _LATENCY_LINE.search(line):
        return {f"{match[1].lower()}_{match[2].lower()}_ms": _number(match[3])}
    if match := _THROUGHPUT.search(line):
        return _throughput_of(match)
    for field, pattern in _OFFLINE:
        if match := pattern.search(line):
            value = _number(match[1], whole=field in _AFTER_RESULT)
            return {field: value * 1e3 if field == "mean_e2el_ms" and value is not None else value}
    return {}


def _throughput_of(match: re.Match[str]) -> dict[str, Any]:
    requests, tokens, labelled, output = match.groups()
    rates = {"requests_per_s": _number(requests)}
    if tokens:
        rates["total_tokens_per_s" if labelled else "tokens_per_s"] = _number(tokens)
    return rates | ({"output_tokens_per_s": _number(output)} if output else {})


def _finish(figures: dict[str, Any], said: dict[str, str], source: str) -> Run:
    known = {name: value for name, value in figures.items() if value is not None}
    latencies = {name: known.pop(name) for name in list(known) if name.endswith("_ms")}
    served = {"successful", "duration_s"} <= known.keys() or any("ttft" in n or "tpot" in n for n in latencies)
    offline = "vllm bench throughput" if "requests_per_s" in known else "vllm bench latency"
    run = Run(source=source, tool="vllm bench serve" if served else offline, latencies=latencies, **known)
    return merge_settings(run, said)


def _number(text: str, *, whole: bool = False) -> Any:
    value = number(text)
    return int(value) if whole and value is not None else value
