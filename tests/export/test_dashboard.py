"""The dashboard: what Grafana asks of its JSON, and that Prometheus can read every query."""

import itertools
import json
import re

import pytest

from maitre.export import InstalledMetrics, Queries, Thresholds, make_dashboard, metrics_of_version

VERSIONS = ["0.4.2", "0.8.5", "0.10.1", "0.12.0", "0.26.0", "0.33.0"]


def plots(dashboard):
    return [panel for panel in dashboard.content["panels"] if panel["type"] != "row"]


def targets(dashboard):
    return [target for panel in plots(dashboard) for target in panel["targets"]]


def plot(dashboard, title):
    return next(panel for panel in plots(dashboard) if panel["title"] == title)


def filled(expr):
    return expr.replace("$__rate_interval", "5m").replace("$model_name", "x")


@pytest.mark.parametrize("version", VERSIONS)
def test_prometheus_can_read_every_query(version, dashboard_of, promtool, write):
    rules = [
        {"record": f"plot:{number}", "expr": filled(target["expr"])}
        for number, target in enumerate(targets(dashboard_of(version)))
    ]
    for rule in rules:
        rule["record"] = rule["record"].replace(":", "_")
        assert "$" not in rule["expr"]
    content, printed = promtool("check", "rules", write("rules.json", {"groups": [{"name": "g", "rules": rules}]}))
    assert content, printed


@pytest.mark.parametrize("version", VERSIONS)
def test_only_metrics_that_the_version_has_are_asked_for(version, dashboard_of):
    known = set(metrics_of_version(version).written)
    dashboard = dashboard_of(version)
    asked = [target["expr"] for target in targets(dashboard)]
    asked += [
        variable["definition"] for variable in dashboard.content["templating"]["list"] if "definition" in variable
    ]
    used = {name for text in asked for name in re.findall(r"vllm:\w+", text)}
    assert used
    assert used <= known


@pytest.mark.parametrize("version", VERSIONS)
def test_panels_have_their_own_number_and_place(version, dashboard_of):
    panels = dashboard_of(version).content["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


def test_no_place_is_left_empty_above_a_row(dashboard_of):
    panels = dashboard_of().content["panels"]
    ends = [0]
    for panel in panels:
        if panel["type"] == "row":
            assert panel["gridPos"]["y"] == max(ends)
        ends.append(panel["gridPos"]["y"] + panel["gridPos"]["h"])


def test_the_three_confirmations_come_first(dashboard_of):
    titles = [panel["title"] for panel in dashboard_of().content["panels"]]
    assert titles[0].startswith("The three confirmations")
    assert titles[1:6] == [
        "Waiting requests", "Preemptions a minute", "Inter-token latency, p99 over p50", "Inter-token latency",
        "Inter-token latency, distribution",
    ]  # fmt: skip


def test_it_is_a_dashboard_that_grafana_imports(dashboard_of):
    content = dashboard_of().content
    assert content["id"] is None
    assert content["schemaVersion"] in {39, 40}
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", content["uid"])
    assert content["title"] == "A title"
    assert "vllm" in content["tags"]
    assert json.loads(json.dumps(content)) == content


def test_everything_is_asked_of_the_chosen_data_source_and_model(dashboard_of):
    dashboard = dashboard_of()
    source, model = dashboard.content["templating"]["list"]
    assert (source["name"], source["type"]) == ("DS_PROMETHEUS", "datasource")
    assert model["definition"] == "label_values(vllm:num_requests_running, model_name)"
    for panel in plots(dashboard):
        assert panel["datasource"]["uid"] == "${DS_PROMETHEUS}"
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${DS_PROMETHEUS}"
            assert 'model_name=~"$model_name"' in target["expr"] or target["expr"].startswith("vector(")


def test_rates_follow_the_zoom(dashboard_of):
    for target in targets(dashboard_of()):
        for window in re.findall(r"\b(?:rate|increase)\([^[]*\[([^]]*)\]", target["expr"]):
            assert window == "$__rate_interval"


def test_every_plot_has_a_unit_and_every_series_a_letter(dashboard_of):
    for panel in plots(dashboard_of()):
        heat = panel["type"] == "heatmap"
        assert panel["options"]["yAxis"]["unit"] if heat else panel["fieldConfig"]["defaults"]["unit"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len({*letters}) == len(letters)
        assert all(target["format"] == ("heatmap" if heat else "time_series") for target in panel["targets"])


@pytest.mark.parametrize(
    ("title", "limits"),
    [
        ("Waiting requests", [1.0]),
        ("Preemptions a minute", [1.0]),
        ("Inter-token latency, p99 over p50", [8.0]),
        ("Inter-token latency", [0.05]),
        ("KV cache in use", [0.5, 0.95]),
        ("Time in the queue", [1.0]),
        ("Time to first token", [0.5]),
        ("Prefix cache hits", []),
    ],
)
def test_thresholds_are_drawn(title, limits, dashboard_of):
    defaults = plot(dashboard_of(), title)["fieldConfig"]["defaults"]
    assert [step["value"] for step in defaults["thresholds"]["steps"]] == [None, *limits]
    assert defaults["custom"]["thresholdsStyle"]["mode"] == ("line" if limits else "off")


def test_the_limit_is_a_line_if_it_is_known(dashboard_of):
    running = plot(dashboard_of(), "Running requests")
    assert [target["expr"] for target in running["targets"]][-1] == "vector(256)"
    unknown = make_dashboard(Queries(metrics_of_version("0.26.0")), Thresholds(), "x")
    assert not any(target["expr"].startswith("vector") for target in targets(unknown))


def test_what_a_version_does_not_have_is_left_out_and_named(dashboard_of):
    dashboard = dashboard_of("0.10.1")
    assert "Time per output token" not in [panel["title"] for panel in plots(dashboard)]
    assert any(line.startswith("p50 of 'Time per output token' is left out") for line in dashboard.left_out)
    assert dashboard_of("0.33.0").left_out == []


def test_a_row_without_plots_is_no_row():
    metrics = InstalledMetrics({"vllm:num_requests_running": "vllm_num_requests_running"}, "x")
    content = make_dashboard(Queries(metrics, ('job="a"',)), Thresholds(), "x").content
    assert [panel["title"] for panel in content["panels"]] == ["Which limit binds", "Running requests"]
    assert 'vllm_num_requests_running{job="a",model_name=~"$model_name"}' in content["panels"][1]["targets"][0]["expr"]
    assert (
        content["templating"]["list"][1]["definition"] == 'label_values(vllm_num_requests_running{job="a"}, model_name)'
    )
