"""Series as text: one scrape of `/metrics`, and a past with times for Prometheus to take in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from maitre.metric_series import MetricSeries

HISTOGRAMS = (
    "inter_token_latency_seconds",
    "time_to_first_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "iteration_tokens_total",
)
_PARTS = ("_bucket", "_count", "_sum")
TARGET_LABELS = ("instance", "job")
"""Prometheus adds them to what it scrapes; a server does not say them itself."""


def metrics_text(series: Sequence[MetricSeries], moment_s: float) -> str:
    """What `/metrics` of the servers answers at a moment since the epoch: each series' last value before it.

    Series without a sample so far are left out, as a server that does not answer yet.
    """
    lines: list[str] = []
    family = ""
    for one in series:
        position = int(np.searchsorted(one.time_s, moment_s, side="right")) - 1
        if position < 0:
            continue
        if family_of(one.name) != family:
            family = family_of(one.name)
            lines += [f"# HELP {family} {family.removeprefix('vllm:')}", f"# TYPE {family} {kind_of(family)}"]
        labels = {name: value for name, value in one.labels.items() if name not in TARGET_LABELS}
        lines.append(f"{_sample(one.name, labels)} {float(one.values[position])!r}")
    return "\n".join(lines) + "\n"


def history_lines(series: Sequence[MetricSeries]) -> Iterator[str]:
    """All samples with their times in seconds, as OpenMetrics without types and end mark, one series after the other.

    It is what `promtool tsdb create-blocks-from openmetrics` reads behind `# EOF`, and with times in milliseconds what
    VictoriaMetrics imports.
    """
    for one in series:
        sample = _sample(one.name, one.labels)
        for time_s, value in zip(one.time_s.tolist(), one.values.tolist(), strict=True):
            yield f"{sample} {value!r} {time_s:.3f}"


def family_of(name: str) -> str:
    """The family that a sample belongs to, as the classic text format names it: a counter keeps its `_total`."""
    for part in _PARTS:
        if name.endswith(part) and name.removeprefix("vllm:").removesuffix(part) in HISTOGRAMS:
            return name.removesuffix(part)
    return name


def kind_of(family: str) -> str:
    """The type of a family."""
    if family.removeprefix("vllm:") in HISTOGRAMS:
        return "histogram"
    return "counter" if family.endswith("_total") else "gauge"


def _sample(name: str, labels: Mapping[str, str]) -> str:
    written = ",".join(f'{key}="{_escaped(value)}"' for key, value in sorted(labels.items()))
    return f"{name}{{{written}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
