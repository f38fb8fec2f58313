"""The rules of a deployment: promtool takes them, and they speak of metrics that the version has, and of no others."""

import re
from pathlib import Path

import pytest

from maitre.export import InstalledMetrics, Queries, Thresholds, make_rules, metrics_of_version
from maitre.slo import parse_latency_targets

VERSIONS = ["0.4.2", "0.6.6", "0.8.5", "0.10.1", "0.11.0", "0.12.0", "0.20.0", "0.26.0", "0.33.0"]
SAMPLE = re.compile(r"(?<!\w)(?:ray_)?vllm[:_]\w+")
RECORDED = re.compile(r"model_name:\w+:\w+")


def exprs(rules):
    return [rule["expr"] for group in rules.groups for rule in group["rules"]]


def rule(rules, name):
    return next(r for group in rules.groups for r in group["rules"] if name in (r.get("alert"), r.get("record")))


@pytest.mark.parametrize("version", VERSIONS)
def test_promtool_takes_the_rules_of_every_version(version, rules_of, promtool, write):
    content, printed = promtool("check", "rules", write("rules.json", {"groups": rules_of(version).groups}))
    assert content, printed


@pytest.mark.parametrize("version", VERSIONS)
def test_only_metrics_that_the_version_has_are_selected(version, rules_of):
    known = set(metrics_of_version(version).written)
    used = {name for expr in exprs(rules_of(version)) for name in SAMPLE.findall(RECORDED.sub("", expr))}
    assert used
    assert used <= known


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_series_that_an_alert_compares_is_recorded(version, rules_of):
    rules = rules_of(version)
    recorded = {r["record"] for group in rules.groups for r in group["rules"] if "record" in r}
    assert {name for expr in exprs(rules) for name in RECORDED.findall(expr)} <= recorded


def test_old_versions_are_asked_under_their_old_names(rules_of):
    old, new = rules_of("0.10.1"), rules_of("0.26.0")
    assert "vllm:time_per_output_token_seconds_bucket" in rule(old, "model_name:vllm_itl:p99_10m")["expr"]
    assert "vllm:inter_token_latency_seconds_bucket" in rule(new, "model_name:vllm_itl:p99_10m")["expr"]
    assert "vllm:gpu_cache_usage_perc" in rule(rules_of("0.8.5"), "model_name:vllm_kv_cache_usage:max_avg5m")["expr"]
    assert "vllm:kv_cache_usage_perc" in rule(old, "model_name:vllm_kv_cache_usage:max_avg5m")["expr"]


def test_what_a_version_does_not_have_is_left_out_and_named(rules_of):
    rules = rules_of("0.26.0")
    assert "VllmRequestsRejected" not in rules.alerts
    assert rules.left_out == ["VllmRequestsRejected is left out: there is no vllm:admission_rejections_total"]
    assert rules_of("0.33.0").left_out == []


def test_names_that_a_relabelling_has_changed(rules_of, promtool, write):
    rules = rules_of(prefix="ray_vllm_")
    assert not any("vllm:" in expr for expr in exprs(rules))
    assert any("ray_vllm_num_requests_running" in expr for expr in exprs(rules))
    content, printed = promtool("check", "rules", write("rules.json", {"groups": rules.groups}))
    assert content, printed


def test_every_selector_has_the_matchers_and_every_series_the_labels(rules_of, promtool, write):
    rules = rules_of(matchers=('namespace="prod"', 'job=~"vllm.*"'), by=("namespace", "model_name"))
    for expr in exprs(rules):
        bare = re.sub(r"namespace_model_name:\w+:\w+", "", expr)
        assert len(SAMPLE.findall(bare)) == bare.count('namespace="prod",job=~"vllm.*"')
        assert "by (model_name" not in expr
    assert rule(rules, "VllmPreemptions")["annotations"]["summary"].startswith(
        "{{ $labels.namespace }} {{ $labels.model_name }}: "
    )
    content, printed = promtool("check", "rules", write("rules.json", {"groups": rules.groups}))
    assert content, printed


def test_thresholds_are_those_that_were_given():
    thresholds = Thresholds(
        max_waiting=7, max_preemptions=3, max_itl_ratio=5, max_kv_usage=0.8, max_queue_p95_s=2, max_lost=0.2,
        min_kv_usage=0.25, min_running=9, targets=parse_latency_targets(["itl_p95=30ms"]),
    )  # fmt: skip
    rules = make_rules(Queries(metrics_of_version("0.33.0")), thresholds)
    ends = {"VllmRequestsWaiting": "> 7", "VllmPreemptions": ">= 3", "VllmItlUnstable": "> 5",
            "VllmKvCacheFull": "> 0.8", "VllmQueueTimeHigh": "> 2", "VllmItlP95High": "> 0.03"}  # fmt: skip
    for name, end in ends.items():
        assert rule(rules, name)["expr"].endswith(end)
    assert "< 0.25\n" in rule(rules, "VllmKvCacheUnderused")["expr"]
    assert ">= 9\n" in rule(rules, "VllmKvCacheUnderused")["expr"]
    assert "> 0.2\n" in rule(rules, "VllmRequestsLost")["expr"]
    assert "(limit 20 %)" in rule(rules, "VllmRequestsLost")["annotations"]["description"]


def test_a_latency_without_a_target_has_no_alert_and_that_is_said():
    rules = make_rules(Queries(metrics_of_version("0.33.0")), Thresholds())
    assert not [name for name in rules.alerts if re.search(r"P\d\dHigh", name)]
    assert [line.partition(":")[0] for line in rules.left_out] == ["no alert on ITL itself", "no alert on TTFT itself"]


def test_a_target_below_the_first_bucket_is_doubted():
    rules = make_rules(
        Queries(metrics_of_version("0.33.0")), Thresholds(targets=parse_latency_targets(["itl_p99=5ms"]))
    )
    assert any("--custom-histogram-buckets" in line for line in rules.left_out)


def test_every_alert_says_how_bad_it_is_and_what_to_do(rules_of):
    rules = rules_of()
    for name in rules.alerts:
        alert = rule(rules, name)
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}
        assert len(alert["annotations"]["description"].splitlines()) >= 2
        assert "runbook_url" not in alert["annotations"]
    assert rule(rules, "VllmKvCacheUnderused")["labels"]["severity"] == "info"


def test_alerts_link_to_their_section_of_the_runbook(thresholds):
    page = (Path(__file__).resolve().parents[2] / "docs" / "export.md").read_text("utf-8")
    sections = {heading.lower() for heading in re.findall(r"^### (\w+)$", page, re.MULTILINE)}
    rules = make_rules(Queries(metrics_of_version("0.33.0")), thresholds, "https://example.org/export.md")
    linked = [rule(rules, name)["annotations"]["runbook_url"].partition("#") for name in rules.alerts]
    assert {place for place, _, _ in linked} == {"https://example.org/export.md"}
    assert {anchor for _, _, anchor in linked} == sections


def test_a_deployment_with_nothing_useful_has_no_rules():
    rules = make_rules(
        Queries(InstalledMetrics({"vllm:cache_config_info": "vllm:cache_config_info"}, "x")), Thresholds()
    )
    assert rules.groups == []
