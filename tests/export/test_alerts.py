"""Each alert, evaluated by Prometheus' own test runner: what it fires at, and what leaves it silent."""

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from maitre.export.alerts import ALERTS, target_alerts
from maitre.slo import parse_latency_targets

spec = importlib.util.spec_from_file_location("export_series", Path(__file__).with_name("series.py"))
of = importlib.util.module_from_spec(spec)
spec.loader.exec_module(of)

ITL = "vllm:inter_token_latency_seconds"
TTFT = "vllm:time_to_first_token_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"
E2E = "vllm:e2e_request_latency_seconds"
QUEUE = "vllm:request_queue_time_seconds"
OF_MODEL = {"model_name": "m"}


class Story(NamedTuple):
    """One alert: labels of the firing one, what it fires at, and what it must not fire at."""

    labels: dict
    fires: list
    calm: dict
    at: int = 40
    """Minutes after the first sample."""


def begun(per_minute):
    return of.series(f"{TTFT}_count", f"0+{per_minute}x120")


def tokens(prompt, output):
    return [of.series("vllm:prompt_tokens_total", prompt), of.series("vllm:generation_tokens_total", output)]


def quiet(usage="0.3x200", busy="10x200", queue="0x200"):
    return [of.kv_usage(usage), of.running(busy), of.waiting(queue)]


STORIES = {
    "VllmRequestsWaiting": Story(
        OF_MODEL,
        [of.waiting("5x60")],
        {
            "one long burst": [of.waiting("0x20 30x2 0x40")],
            "requests that wait for an adapter": [of.waiting("0x60"), of.waiting("50x60", reason="deferred")],
            "one request now and then": [of.waiting("0 1 0 0 1 0 1 0 0 0 0 0 1 0 0 0x40")],
        },
    ),
    "VllmPreemptions": Story(
        OF_MODEL,
        [of.preemptions("0+2x60")],
        {
            "one burst": [of.preemptions("0x20 40x60")],
            "one in two minutes": [of.preemptions("0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7 8 8 9 9 10 10 11 11 12 12 13 13")],
            "half a one a minute on each of two engines": [
                of.preemptions("0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7 8 8 9 9 10 10 11 11 12 12 13 13", engine=str(engine))
                for engine in range(2)
            ],
        },
        at=25,
    ),
    "VllmItlUnstable": Story(
        OF_MODEL,
        of.histogram(ITL, {0.01: 0, 0.025: 90, 0.05: 95, 0.3: 98, 0.5: 100}),
        {
            "one kind of steps": of.histogram(ITL, {0.01: 0, 0.025: 95, 0.05: 100}),
            "fast steps, all in the first bucket": of.histogram(ITL, {0.01: 97, 0.025: 98, 0.075: 100}),
            "no traffic": of.histogram(ITL, {0.01: 0, 0.025: 0}),
        },
    ),
    "VllmKvCacheFull": Story(
        OF_MODEL,
        [of.kv_usage("0.4x60"), of.kv_usage("0.98x60", engine="1")],
        {"nine tenths": [of.kv_usage("0.9x60")], "full for five minutes": [of.kv_usage("0.5x20 1x5 0.5x40")]},
    ),
    "VllmQueueTimeHigh": Story(
        OF_MODEL,
        of.histogram(QUEUE, {0.3: 80, 0.5: 82, 1: 85, 2.5: 90, 5: 100}),
        {"all within the first bucket": of.histogram(QUEUE, {0.3: 100, 0.5: 100})},
    ),
    "VllmKvCacheUnderused": Story(
        OF_MODEL,
        quiet(),
        {
            "no demand": quiet(busy="1x200"),
            "requests wait all the same": quiet(queue="5x200"),
            "a well used pool": quiet(usage="0.7x200"),
            "a pool that fills once an hour": quiet(usage="0.3x50 0.8x10 0.3x50 0.8x10 0.3x80"),
        },
        at=130,
    ),
    "VllmDown": Story(
        {"job": "vllm", "instance": "a:8000"},
        [of.series("up", "1x20 0x60", {"job": "vllm", "instance": "a:8000"}), of.running("3x20")],
        {
            "something else is down": [
                of.series("up", "0x60", {"job": "node", "instance": "a:9100"}),
                of.series("up", "1x60", {"job": "vllm", "instance": "a:8000"}),
                of.running("3x60"),
            ],
            "one scrape fails": [
                of.series("up", "1x39 0 1x30", {"job": "vllm", "instance": "a:8000"}), of.running("3x60"),
            ],
        },
    ),
    "VllmNoMetrics": Story(
        {},
        [of.series("up", "1x60", {"job": "node", "instance": "a:9100"})],
        {"an idle server": [of.running("0x60")]},
    ),
    "VllmStalled": Story(
        OF_MODEL,
        [of.running("3x60"), *tokens("0+100x20 2000x60", "0+50x20 1000x60")],
        {
            "tokens come": [of.running("3x60"), *tokens("0x60", "0+50x60")],
            "a long prefill": [of.running("0x20 1x60"), *tokens("0x24 90000x60", "0x24 0+10x60")],
            "nothing runs": [of.running("0x60"), *tokens("2000x60", "1000x60")],
        },
    ),
    "VllmRequestsRejected": Story(
        {"model_name": "m", "reason": "max_num_queued_reqs"},
        [of.series("vllm:admission_rejections_total", "0+3x60", OF_MODEL, reason="max_num_queued_reqs")],
        {"a few at once": [of.series("vllm:admission_rejections_total", "0x34 7x60", OF_MODEL, reason="x")]},
    ),
    "VllmRequestsLost": Story(
        OF_MODEL,
        [begun(20), of.finished("0+15x120"), of.finished("0+2x120", "abort"), of.running("8x120")],
        {
            "all end": [begun(20), of.finished("0+14x120"), of.finished("0+6x120", "length"), of.running("8x120")],
            "the load grows": [begun(20), of.finished("0+15x120"), of.running("0+5x120")],
            "too few to tell": [begun(2), of.finished("0+1x120"), of.running("1x120")],
        },
    ),
    "VllmItlP99High": Story(
        OF_MODEL,
        of.histogram(ITL, {0.025: 0, 0.05: 90, 0.1: 100}),
        {"just within": of.histogram(ITL, {0.025: 0, 0.05: 100, 0.1: 100})},
    ),
    "VllmTtftP95High": Story(
        OF_MODEL,
        of.histogram(TTFT, {0.25: 50, 0.5: 90, 0.75: 95, 1: 100}),
        {"a few are late": of.histogram(TTFT, {0.25: 50, 0.5: 96, 0.75: 100})},
    ),
    "VllmTpotP90High": Story(
        OF_MODEL,
        of.histogram(TPOT, {0.025: 0, 0.05: 50, 0.1: 100}),
        {"within": of.histogram(TPOT, {0.025: 95, 0.05: 100})},
    ),
    "VllmE2eP95High": Story(
        OF_MODEL,
        of.histogram(E2E, {15: 50, 20: 90, 30: 100}),
        {"within": of.histogram(E2E, {15: 50, 20: 100})},
    ),
}  # fmt: skip
SEVERITY = {alert.name: alert.severity for alert in ALERTS}
CALM = [(name, what) for name, story in STORIES.items() for what in story.calm]


@pytest.fixture(scope="module")
def bare_groups(rules_of):
    """The rules without texts: promtool compares them, too."""
    groups = rules_of().groups
    return [group | {"rules": [_without_texts(rule) for rule in group["rules"]]} for group in groups]


def _without_texts(rule):
    return {key: value for key, value in rule.items() if key != "annotations"}


@pytest.fixture
def judge(promtool, write):
    """Whether exactly these alerts of one name fire at each of some minutes."""

    def call(groups, name, minutes, input_series, expected):
        write("rules.json", {"groups": groups})
        alerts = [{"eval_time": f"{at}m", "alertname": name, "exp_alerts": expected} for at in minutes]
        test = {"interval": "1m", "input_series": input_series, "alert_rule_test": alerts}
        return promtool("test", "rules", write("test.json", {"rule_files": ["rules.json"], "tests": [test]}))

    return call


def test_there_is_a_story_of_each_alert():
    targets = parse_latency_targets(["itl_p99=50ms", "ttft_p95=500ms", "tpot_p90=40ms", "e2e_p95=20s"])
    assert [*STORIES] == [alert.name for alert in (*ALERTS, *target_alerts(targets))]


@pytest.mark.parametrize("name", STORIES)
def test_it_fires(name, bare_groups, judge):
    story = STORIES[name]
    labels = story.labels | {"severity": SEVERITY.get(name, "warning")}
    content, printed = judge(bare_groups, name, [story.at], story.fires, [{"exp_labels": labels}])
    assert content, printed


@pytest.mark.parametrize(("name", "what"), CALM, ids=[f"{name}-{what}" for name, what in CALM])
def test_it_does_not_fire(name, what, bare_groups, judge):
    story = STORIES[name]
    content, printed = judge(bare_groups, name, range(story.at + 1), story.calm[what], [])
    assert content, printed


def test_it_fires_for_each_model_and_not_for_the_others(bare_groups, judge):
    both = [of.waiting("5x60"), of.waiting("0x60", model_name="other"), of.waiting("9x60", model_name="third")]
    expected = [{"exp_labels": {"model_name": name, "severity": "warning"}} for name in ("m", "third")]
    content, printed = judge(bare_groups, "VllmRequestsWaiting", [40], both, expected)
    assert content, printed


def test_the_text_has_the_value_the_limit_and_the_dial(rules_of, judge):
    expected = {
        "exp_labels": {"model_name": "m", "severity": "warning"},
        "exp_annotations": {
            "summary": "m: requests are preempted",
            "description": "One engine preempted 2 requests a minute over ten minutes (limit 1); what they had "
            "computed is computed again.\n"
            "Lower --max-num-seqs (256), or enlarge the pool: --gpu-memory-utilization, --kv-cache-dtype fp8, "
            "a smaller --max-num-batched-tokens.\n"
            "Leave it alone if the inter-token latency is within its target: a few preemptions cost less than empty "
            "slots.",
        },
    }
    story = STORIES["VllmPreemptions"]
    content, printed = judge(rules_of().groups, "VllmPreemptions", [40], story.fires, [expected])
    assert content, printed


def test_an_alert_on_waiting_requests_tells_what_else_the_diagnosis_takes(rules_of, judge):
    busy = [of.waiting("5x60"), of.running("200x60"), of.kv_usage("0.25x60"), of.kv_usage("0.99x60", model_name="x")]
    _, printed = judge(rules_of().groups, "VllmRequestsWaiting", [40], busy, [])
    assert "The busiest engine runs 200, and the fullest uses 25% of its KV blocks." in printed
    _, printed = judge(rules_of().groups, "VllmRequestsWaiting", [40], [of.waiting("5x60")], [])
    assert "The busiest engine runs ?, and the fullest uses ? of its KV blocks." in printed


@pytest.mark.parametrize("name", STORIES)
def test_prometheus_can_fill_in_the_text(name, rules_of, judge):
    story = STORIES[name]
    _, printed = judge(rules_of().groups, name, [story.at], story.fires, [])
    got = printed.partition("got:")[2]
    assert "description=" in got
    assert not re.search(r"error|%!|<no value>|\{\{|@", got), got
