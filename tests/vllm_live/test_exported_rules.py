"""A real vLLM on a CPU, scraped by a real Prometheus that evaluates the rules: every query has an answer."""

import pytest

from maitre.export import metrics_of_scrape, metrics_of_version

pytestmark = [pytest.mark.vllm, pytest.mark.prometheus]


def test_the_server_has_what_its_version_is_said_to_have(watched):
    there = set(metrics_of_scrape(watched.exposition, watched.target).written)
    said = set(metrics_of_version(watched.version.partition("+")[0]).written)
    with_a_flag = ("kv_block", "spec_decode", "estimated", "lora", "corrupted", "kv_fetch", "watermark", "by_source")
    assert {name for name in said - there if not any(word in name for word in with_a_flag)} == set()


def test_nothing_is_left_out(watched):
    assert (watched.rules.left_out, watched.dashboard.left_out) == ([], [])


def test_prometheus_evaluates_every_rule(watched):
    found = [rule for group in watched.rule_groups for rule in group["rules"]]
    assert len(found) == sum(len(group["rules"]) for group in watched.rules.groups)
    assert {rule["name"]: rule.get("lastError", "") for rule in found if rule["health"] != "ok"} == {}
    assert [rule["name"] for rule in found if rule.get("state") == "firing"] == []


def test_every_recorded_series_is_there(watched):
    recorded = [rule["record"] for group in watched.rules.groups for rule in group["rules"] if "record" in rule]
    assert recorded
    assert [name for name in recorded if not watched.ask(name)] == []


def test_every_plot_has_points(watched):
    empty = []
    for panel in watched.dashboard.content["panels"]:
        for target in panel.get("targets", []):
            expr = target["expr"].replace("$__rate_interval", "5m").replace("$model_name", "tiny")
            if not watched.ask(expr):
                empty.append((panel["title"], expr))
    assert empty == []


def test_a_request_that_its_client_gave_up_ends_nowhere(watched, loads):
    """What the alert VllmRequestsLost is made for; if this fails, vLLM has begun to count them."""
    began = float(watched.ask("sum(vllm:time_to_first_token_seconds_count)")[0]["value"][1])
    ended = float(watched.ask("sum(vllm:request_success_total)")[0]["value"][1])
    num_ended = len(loads.SINGLE) + loads.NUM_AT_ONCE
    assert (began, ended) == (num_ended + loads.NUM_GIVEN_UP, num_ended)
