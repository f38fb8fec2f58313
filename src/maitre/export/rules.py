"""Prometheus rules for a vLLM deployment: what is recorded, and what is an alarm."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from maitre.export.alerts import ALERTS, Alert, target_alerts
from maitre.export.queries import Promql, Queries
from maitre.export.recorded_series import recorded
from maitre.export.thresholds import FINEST_ITL_S, Thresholds
from maitre.slo import LatencyTarget
from maitre.units import format_seconds

_RECORDED = re.compile(r"@level:(\w+:\w+)")


class Rules(NamedTuple):
    """A file of rules, and what is not in it."""

    groups: list[dict[str, Any]]
    """As in a file of Prometheus, under `groups:`."""
    left_out: list[str]
    """A sentence for each rule that the deployment's metrics do not allow, and for each doubt."""

    @property
    def alerts(self) -> list[str]:
        """The names of the alerts."""
        return [rule["alert"] for group in self.groups for rule in group["rules"] if "alert" in rule]


def make_rules(queries: Queries, thresholds: Thresholds, runbook_url: str | None = None) -> Rules:
    """The rules that the deployment's metrics allow.

    Args:
        queries: the deployment.
        thresholds: from where on a figure is an alarm.
        runbook_url: the page with a section an alert (docs/export.md); None: no link.
    """
    series = recorded(thresholds.targets)
    missing = {name: queries.missing(template) for name, template in series.items()}
    records = [
        {"record": f"{queries.level}:{name}", "expr": queries.fill(template)}
        for name, template in series.items()
        if not missing[name]
    ]
    alerts, left_out = [], [*_remarks(thresholds.targets)]
    for alert in (*ALERTS, *target_alerts(thresholds.targets)):
        used = [sample for name in _RECORDED.findall(alert.expr) for sample in missing[name]]
        if lacking := [*dict.fromkeys(used + queries.missing(alert.expr))]:
            left_out.append(f"{alert.name} is left out: there is no {', no '.join(lacking)}")
        else:
            alerts.append(_alert_rule(alert, queries, thresholds, runbook_url))
    left_out += _records_left_out(missing, alerts_need={n for alert in ALERTS for n in _RECORDED.findall(alert.expr)})
    groups = [{"name": "vllm.recorded", "rules": records}, {"name": "vllm.alerts", "rules": alerts}]
    return Rules([group for group in groups if group["rules"]], left_out)


def _alert_rule(alert: Alert, queries: Queries, thresholds: Thresholds, runbook_url: str | None) -> dict[str, Any]:
    words = _words(queries, thresholds)
    annotations = {
        "summary": Promql(alert.summary).substitute(words),
        "description": Promql(alert.description).substitute(words),
    }
    if runbook_url:
        annotations["runbook_url"] = f"{runbook_url}#{alert.section.lower()}"
    return {
        "alert": alert.name,
        "expr": queries.fill(Promql(alert.expr).safe_substitute(words)),
        "for": alert.hold,
        "labels": {"severity": alert.severity},
        "annotations": annotations,
    }


def _words(queries: Queries, thresholds: Thresholds) -> dict[str, str]:
    """The thresholds and names that expressions and texts speak of."""
    figures = thresholds.model_dump(exclude={"targets", "max_num_seqs"})
    seqs = thresholds.max_num_seqs
    return {
        **{name: f"{value:g}" for name, value in figures.items()},
        "finest_itl_s": f"{FINEST_ITL_S:g}",
        "max_queue_p95": format_seconds(thresholds.max_queue_p95_s),
        "max_lost_percent": f"{100 * thresholds.max_lost:g} %",
        "running_name": queries.metrics.find("vllm:num_requests_running") or "",
        "seqs": f" ({seqs})" if seqs else "",
        "running_now": _value_now(queries, "vllm_num_requests_running:max_avg5m", "humanize"),
        "kv_usage_now": _value_now(queries, "vllm_kv_cache_usage:max_avg5m", "humanizePercentage"),
        "who": " ".join(f"{{{{ $labels.{label} }}}}" for label in queries.by),
    }


def _value_now(queries: Queries, name: str, form: str) -> str:
    """The value of a recorded series when the alert fires, as Prometheus' templates ask for it."""
    matchers = ",".join(f"{label}=%q" for label in queries.by)
    labels = " ".join(f"$labels.{label}" for label in queries.by)
    query = f'printf "{queries.level}:{name}{{{matchers}}}" {labels} | query'
    return f"{{{{ with {query} }}}}{{{{ . | first | value | {form} }}}}{{{{ else }}}}?{{{{ end }}}}"


def _records_left_out(missing: dict[str, list[str]], alerts_need: set[str]) -> Iterable[str]:
    """Series that are recorded for people only; of the others the alert was named already."""
    for name, samples in missing.items():
        if samples and name not in alerts_need:
            yield f"the record {name} is left out: there is no {', no '.join(samples)}"


def _remarks(targets: tuple[LatencyTarget, ...]) -> Iterable[str]:
    for metric in ("itl", "ttft"):
        if not any(target.metric == metric for target in targets):
            yield f"no alert on {metric.upper()} itself: give its target, such as --slo {_EXAMPLES[metric]}"
    for target in targets:
        if target.metric in {"itl", "tpot"} and target.limit_s < FINEST_ITL_S:
            yield (
                f"{target}: vLLM's first bucket ends at {format_seconds(FINEST_ITL_S)}; start it with "
                "--custom-histogram-buckets (0.32 and later), else below that every percentile is a guess"
            )


_EXAMPLES = {"itl": "itl_p99=50ms", "ttft": "ttft_p95=500ms"}
