"""The forms of a rule file: YAML that people read, and the operator's object."""

import jsonschema
import pytest
import yaml

from maitre.errors import UsageError
from maitre.export import prometheus_rule, to_yaml

DURATION = r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
RULE = {
    "type": "object",
    "required": ["expr"],
    "additionalProperties": False,
    "properties": {
        "alert": {"type": "string"},
        "record": {"type": "string"},
        "expr": {"type": "string", "minLength": 1},
        "for": {"type": "string", "pattern": DURATION},
        "keep_firing_for": {"type": "string", "pattern": DURATION},
        "labels": TEXTS,
        "annotations": TEXTS,
    },
    "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
}
GROUP = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {"name": {"type": "string", "minLength": 1}, "rules": {"type": "array", "items": RULE}},
}
PROMETHEUS_RULE = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "kind": {"const": "PrometheusRule"},
        "metadata": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "namespace": {"type": "string"}, "labels": TEXTS},
        },
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"groups": {"type": "array", "items": GROUP}},
        },
    },
}
"""What the operator's CustomResourceDefinition asks of the fields that are used here."""


def test_the_object_is_what_the_operator_takes(rules_of):
    groups = rules_of().groups
    made = prometheus_rule(groups, "maitre-vllm", "prod", {"release": "kube-prometheus-stack"})
    jsonschema.validate(made, PROMETHEUS_RULE)
    names = [group["name"] for group in groups]
    assert len({*names}) == len(names)
    assert made["metadata"] == {
        "name": "maitre-vllm", "namespace": "prod", "labels": {"release": "kube-prometheus-stack"},
    }  # fmt: skip


def test_what_is_not_said_is_not_there():
    assert prometheus_rule([], "x", None, {})["metadata"] == {"name": "x"}


@pytest.mark.parametrize(
    ("name", "namespace", "labels"),
    [
        ("A", None, {}),
        ("a_b", None, {}),
        ("", None, {}),
        ("a", "-", {}),
        ("a", "", {}),
        ("a", None, {"": "x"}),
        ("a", None, {"k": "a b"}),
    ],
)
def test_what_kubernetes_refuses_is_refused(name, namespace, labels):
    with pytest.raises(UsageError):
        prometheus_rule([], name, namespace, labels)


def test_yaml_says_the_same(rules_of):
    document = {"groups": rules_of().groups}
    assert yaml.safe_load(to_yaml(document)) == document


def test_a_text_of_several_lines_stands_as_it_is(rules_of):
    text = to_yaml({"groups": rules_of().groups})
    assert "          description: |-\n            {{ $value | humanize }} requests waited on average" in text
    assert "            The engine hangs: keep its log" in text
    assert "\\n" not in text
    assert "&id" not in text


def test_promtool_takes_the_yaml(rules_of, promtool, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(to_yaml({"groups": rules_of().groups}), "utf-8")
    content, printed = promtool("check", "rules", path)
    assert content, printed
