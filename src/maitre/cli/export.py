"""`maitre export`: what is deployed beside a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from maitre.cli.export_options import CONFIRMATIONS, NEWEST_VLLM, DeploymentOptions, ThresholdOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maitre.export import Rules

export = App(name="export")
Output = Annotated[Path | None, Parameter(name=["--out", "-o"])]


@export.command
def rules(
    deployment: DeploymentOptions = NEWEST_VLLM,
    thresholds: ThresholdOptions = CONFIRMATIONS,
    *,
    format: Literal["groups", "prometheusrule"] | None = None,  # noqa: A002 - the option's name
    by: str = "model_name",
    runbook_url: str | None = None,
    name: str | None = None,
    namespace: str | None = None,
    release: str | None = None,
    label: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    out: Output = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Write Prometheus rules: what is recorded, and what is an alarm.

    Rules for metrics that the deployment does not have are left out and named on stderr.

    Parameters
    ----------
    format
        groups: a file for rule_files of prometheus.yml. prometheusrule: an object for the Prometheus Operator, also
        when --name, --namespace, --release or --label is given.
    by
        Labels that tell deployments apart, such as model_name,namespace: one alert for each.
    runbook_url
        Address of a page with a section an alert, such as your copy of docs/export.md; no link when not given.
    name
        Of the object: maitre-vllm when not given.
    namespace
        Of the object.
    release
        Its label release, by which kube-prometheus-stack finds rules.
    label
        A further label of the object, such as team=inference. Give it once for each.
    out
        File to write; stdout when not given.
    json
        Write JSON, which Prometheus and Kubernetes read, too.
    """
    from maitre.errors import InputError
    from maitre.export import make_rules

    queries = deployment.queries(by)
    made = make_rules(queries, thresholds.thresholds(), runbook_url)
    if not made.alerts:
        raise InputError(f"{queries.metrics.source}: no rule is possible", "give a whole scrape of /metrics")
    is_object = format == "prometheusrule" or (format is None and bool(name or namespace or release or label))
    _check_object_options(format, name, namespace, release, label)
    labels = ({"release": release} if release is not None else {}) | _read_labels(label)
    document = _rules_document(made, labels, name or "maitre-vllm", namespace, is_object=is_object)
    _write(_text(document, f"names as in {queries.metrics.source}", as_json=json), out)
    _say(made.left_out, out)
    return 0


@export.command
def dashboard(
    deployment: DeploymentOptions = NEWEST_VLLM,
    thresholds: ThresholdOptions = CONFIRMATIONS,
    *,
    title: str = "vLLM: are the two limits right?",
    out: Output = None,
) -> int:
    """Write a Grafana dashboard: the three confirmations first, then what explains them.

    Import it in Grafana, or put it into a provisioned folder. Plots of metrics that the deployment does not have are
    left out and named on stderr.

    Parameters
    ----------
    title
        Of the dashboard.
    out
        File to write; stdout when not given.
    """
    from json import dumps

    from maitre.errors import InputError
    from maitre.export import make_dashboard

    queries = deployment.queries()
    made = make_dashboard(queries, thresholds.thresholds(), title)
    if not made.content["panels"]:
        raise InputError(f"{queries.metrics.source}: no plot is possible", "give a whole scrape of /metrics")
    _write(dumps(made.content, indent=2, ensure_ascii=False) + "\n", out)
    _say(made.left_out, out)
    return 0


def _rules_document(
    made: Rules, labels: Mapping[str, str], name: str, namespace: str | None, *, is_object: bool
) -> dict[str, object]:
    from maitre.export import prometheus_rule

    return prometheus_rule(made.groups, name, namespace, labels) if is_object else {"groups": made.groups}


def _check_object_options(
    form: str | None, name: str | None, namespace: str | None, release: str | None, labels: Sequence[str]
) -> None:
    from maitre.errors import UsageError

    if form == "groups" and (name or namespace or release or labels):
        what = "--name, --namespace, --release and --label are of an object of Kubernetes"
        raise UsageError(what, "leave them out, or --format prometheusrule")


def _read_labels(texts: Sequence[str]) -> dict[str, str]:
    from maitre.errors import UsageError

    for text in texts:
        if "=" not in text:
            raise UsageError(f"--label '{text}' has no value", "write team=inference")
    return {key: value for key, _, value in (text.partition("=") for text in texts)}


def _text(document: Mapping[str, object], remark: str, *, as_json: bool) -> str:
    from json import dumps

    from maitre import __version__
    from maitre.export import to_yaml

    if as_json:
        return dumps(document, indent=2, ensure_ascii=False) + "\n"
    return f"# maitre {__version__}; {' '.join(remark.split())}\n{to_yaml(document)}"


def _write(text: str, out: Path | None) -> None:
    from maitre.errors import SystemFailure

    if out is None or str(out) == "-":
        print(text, end="", flush=True)
        return
    try:
        out.write_text(text, "utf-8")
    except OSError as error:
        raise SystemFailure(f"{out}: cannot be written ({error.strerror})", "check the path and the disk") from error


def _say(left_out: Sequence[str], out: Path | None) -> None:
    """What is not there, once it is known that the rest is."""
    for line in left_out:
        print(f"maitre: {line}", file=sys.stderr)
    if out is not None and str(out) != "-":
        print(f"maitre: {out} is written", file=sys.stderr)
