"""The forms that rules are deployed in: a file of Prometheus, or the operator's PrometheusRule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from maitre.errors import UsageError

_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?")


def prometheus_rule(
    groups: list[dict[str, Any]], name: str, namespace: str | None, labels: Mapping[str, str]
) -> dict[str, Any]:
    """The object for the Prometheus Operator (`monitoring.coreos.com/v1`).

    Args:
        groups: as in a file of Prometheus.
        name: of the object.
        namespace: None: the one that it is applied in.
        labels: what the operator's ruleSelector looks for; of kube-prometheus-stack `release`.

    Raises:
        UsageError: Kubernetes takes no such name or label.
    """
    for what in (name, *([namespace] if namespace is not None else [])):
        if not _OBJECT_NAME.fullmatch(what):
            raise UsageError(f"'{what}' is no name of Kubernetes", "use a to z, 0 to 9, - and .")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise UsageError(f"'{key}={value}' is no label of Kubernetes", "write release=kube-prometheus-stack")
    metadata: dict[str, Any] = {"name": name}
    if namespace is not None:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = dict(labels)
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata,
        "spec": {"groups": groups},
    }


class _Dumper(yaml.SafeDumper):
    """YAML as people write it: lists are indented, texts of several lines stand as blocks."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _write_text)


def to_yaml(document: Mapping[str, Any]) -> str:
    """The document, keys in their own order, a text of several lines as a block."""
    return yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
