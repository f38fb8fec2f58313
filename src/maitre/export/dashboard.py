"""A Grafana dashboard of a vLLM deployment: the three confirmations of a setting first, then what explains them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from maitre.export.panels import COLUMNS, DATASOURCE, Panel, Row, Series, panel_json, row_json
from maitre.export.queries import Queries, quantile
from maitre.export.thresholds import FINEST_ITL_S, Thresholds

UID = "maitre-vllm-limits"
"""Stable, so that a newer dashboard replaces the older one."""
SCHEMA_VERSION = 39
"""Of Grafana 10.4; later ones read it and bring it up to date."""

_WINDOW = "$__rate_interval"
_BY = "{{model_name}}"


class Dashboard(NamedTuple):
    """A dashboard, and what is not in it."""

    content: dict[str, Any]
    """As Grafana imports it."""
    left_out: list[str]
    """A sentence for each series that the deployment's metrics do not allow."""


def make_dashboard(queries: Queries, thresholds: Thresholds, title: str) -> Dashboard:
    """The dashboard that the deployment's metrics allow.

    Args:
        queries: the deployment; the choice of `model_name` is added.
        thresholds: drawn as lines.
        title: of the dashboard.
    """
    chosen = Queries(queries.metrics, (*queries.matchers, 'model_name=~"$model_name"'), ("model_name",))
    panels, left_out = _place(_rows(thresholds), chosen)
    content: dict[str, Any] = {
        "id": None,
        "uid": UID,
        "title": title,
        "description": "Whether --max-num-seqs and --max-num-batched-tokens are right, and which one to turn if not.",
        "tags": ["vllm", "maitre"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [*_variables(queries)]},
        "panels": panels,
    }
    return Dashboard(content, left_out)


def _place(rows: tuple[Row, ...], queries: Queries) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows from top to bottom, their panels from left to right."""
    placed: list[dict[str, Any]] = []
    left_out: list[str] = []
    y = 0
    for row in rows:
        shown = [(panel, exprs) for panel in row.panels if (exprs := _exprs(panel, queries, left_out))]
        if not shown:
            continue
        placed.append(row_json(row.title, len(placed) + 1, y))
        y, x, tallest = y + 1, 0, 0
        for panel, exprs in shown:
            if x + panel.width > COLUMNS:
                y, x, tallest = y + tallest, 0, 0
            placed.append(panel_json(panel, len(placed) + 1, x, y, exprs))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return placed, left_out


def _exprs(panel: Panel, queries: Queries, left_out: list[str]) -> list[tuple[str, str]]:
    """Legend and query of each series that is there; the others are added to `left_out`."""
    found = []
    for series in panel.series:
        if lacking := queries.missing(series.expr):
            what = f"{series.legend.removeprefix(_BY).strip()} of " if len(panel.series) > 1 else ""
            left_out.append(f"{what}'{panel.title}' is left out: there is no {', no '.join(dict.fromkeys(lacking))}")
        else:
            found.append((series.legend, queries.fill(series.expr)))
    return found


def _variables(queries: Queries) -> Iterator[dict[str, Any]]:
    yield {"name": "DS_PROMETHEUS", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1,
           "hide": 0, "includeAll": False, "multi": False, "options": [], "regex": "", "current": {}}  # fmt: skip
    known = ("vllm:num_requests_running", "vllm:generation_tokens_total", *queries.metrics.written)
    name = queries.metrics.find(*known) or ""
    matchers = ",".join(queries.matchers)
    query = f"label_values({name}{{{matchers}}}, model_name)" if matchers else f"label_values({name}, model_name)"
    yield {"name": "model_name", "label": "Model", "type": "query", "datasource": DATASOURCE, "definition": query,
           "query": {"query": query, "refId": "model_name"}, "refresh": 2, "sort": 1, "hide": 0, "regex": "",
           "includeAll": True, "allValue": ".*", "multi": True, "options": [],
           "current": {"text": ["All"], "value": ["$__all"]}}  # fmt: skip


def _rows(thresholds: Thresholds) -> tuple[Row, ...]:
    return (
        Row("The three confirmations: nothing waits, hardly a preemption, a stable inter-token latency",
            (*_confirmations(thresholds),)),
        Row("Which limit binds", (*_limits(thresholds),)),
        Row("Latency", (*_latencies(thresholds),)),
        Row("Throughput", _THROUGHPUT),
        Row("Lengths", _LENGTHS),
    )  # fmt: skip


def _confirmations(thresholds: Thresholds) -> Iterator[Panel]:
    yield Panel(
        "Waiting requests", "short",
        (Series(f"{_BY} now", "max by (@by) (@waiting)"),
         Series(f"{_BY} mean of 10 min", "max by (@by) (avg_over_time(@waiting[10m]))")),
        "Of the engine with most of them. The mean is to stay near 0; a burst may wait.", limit=thresholds.max_waiting,
    )  # fmt: skip
    yield Panel(
        "Preemptions a minute", "cpm", (Series(_BY, f"60 * max by (@by) (rate(@preemptions[{_WINDOW}]))"),),
        "Of the engine with most of them: requests whose KV blocks were taken, so that they are computed again.",
        limit=thresholds.max_preemptions,
    )  # fmt: skip
    yield Panel(
        "Inter-token latency, p99 over p50", "none",
        (Series(_BY, f"{quantile('itl', 99, _WINDOW)} / clamp_min({quantile('itl', 50, _WINDOW)}, {FINEST_ITL_S:g})"),),
        "Long prefills beside decodes make the tail long.", limit=thresholds.max_itl_ratio,
    )  # fmt: skip
    yield Panel(
        "Inter-token latency", "s", _quantiles("itl"), "Interpolated within vLLM's buckets.",
        limit=_limit_s(thresholds, "itl"), width=12,
    )  # fmt: skip
    yield Panel(
        "Inter-token latency, distribution", "s", _buckets("itl"),
        "Two bands: some tokens wait for a prefill. One band: all steps are alike.", is_heatmap=True, width=12,
    )  # fmt: skip


def _limits(thresholds: Thresholds) -> Iterator[Panel]:
    seqs = thresholds.max_num_seqs
    line = (Series("max_num_seqs", f"vector({seqs})"),) if seqs else ()
    yield Panel(
        "Running requests", "short",
        (Series(f"{_BY} busiest engine", "max by (@by) (@running)"),
         Series(f"{_BY} all engines", "sum by (@by) (@running)"), *line),
        "The busiest engine at max_num_seqs while requests wait: the slots bind.",
    )  # fmt: skip
    yield Panel(
        "KV cache in use", "percentunit",
        (Series(f"{_BY} fullest engine", "max by (@by) (@kv_usage)"),
         Series(f"{_BY} mean", "avg by (@by) (@kv_usage)")),
        "Full: KV blocks bind. Below the lower line with requests running: there is room.",
        limit=thresholds.max_kv_usage, low=thresholds.min_kv_usage, maximum=1.0,
    )  # fmt: skip
    yield Panel(
        "Time in the queue", "s", _quantiles("queue"), "Before the first step that computes the request.",
        limit=thresholds.max_queue_p95_s,
    )  # fmt: skip


def _latencies(thresholds: Thresholds) -> Iterator[Panel]:
    for metric, title, text in (
        ("ttft", "Time to first token", "Queue and prefill."),
        ("tpot", "Time per output token", "The mean gap of each request."),
        ("e2e", "End-to-end latency", "Grows with the answers' lengths."),
    ):
        yield Panel(title, "s", _quantiles(metric), text, limit=_limit_s(thresholds, metric))


_THROUGHPUT = (
    Panel(
        "Tokens a second", "suffix: tokens/s",
        (Series(f"{_BY} prompt", f"sum by (@by) (rate(@prompt_tokens[{_WINDOW}]))"),
         Series(f"{_BY} output", f"sum by (@by) (rate(@generation_tokens[{_WINDOW}]))")),
        "A prompt counts when its prefill ends.",
    ),
    Panel(
        "Requests finished a second, by reason", "reqps",
        (Series(f"{_BY} {{{{finished_reason}}}}", f"sum by (@by, finished_reason) (rate(@finished[{_WINDOW}]))"),
         Series(f"{_BY} rejected: {{{{reason}}}}", f"sum by (@by, reason) (rate(@rejections[{_WINDOW}]))")),
        "length: cut off at max_tokens or max_model_len. Requests that clients gave up are under no reason in vLLM V1.",
    ),
    Panel(
        "Prefix cache hits", "percentunit",
        (Series(_BY, f"sum by (@by) (rate(@hits[{_WINDOW}])) / sum by (@by) (rate(@queries[{_WINDOW}]))"),),
        "Share of the prompts' tokens that were not computed.", maximum=1.0,
    ),
)  # fmt: skip

_LENGTHS = (
    Panel(
        "Prompt tokens", "short", (Series("{{le}}", f"sum by (le) (increase(@prompt_length[{_WINDOW}]))"),),
        "Of finished requests.", is_heatmap=True, width=12,
    ),
    Panel(
        "Output tokens", "short", (Series("{{le}}", f"sum by (le) (increase(@output_length[{_WINDOW}]))"),),
        "Of finished requests.", is_heatmap=True, width=12,
    ),
)  # fmt: skip


def _quantiles(signal: str) -> tuple[Series, ...]:
    return tuple(Series(f"{_BY} p{percent}", quantile(signal, percent, _WINDOW)) for percent in (50, 95, 99))


def _buckets(signal: str) -> tuple[Series, ...]:
    return (Series("{{le}}", f"sum by (le) (increase(@{signal}[{_WINDOW}]))"),)


def _limit_s(thresholds: Thresholds, metric: str) -> float | None:
    """The target of the highest percentile of a latency."""
    targets = [target for target in thresholds.targets if target.metric == metric]
    return max(targets, key=lambda target: target.percent).limit_s if targets else None
