"""Simulated servers behind a real Prometheus: scraped while their time goes by, and taken in with their past."""

import urllib.parse
from pathlib import Path
from types import SimpleNamespace

import pytest

from maitre.metric_series import total_increase
from maitre.prometheus.client import PrometheusClient
from maitre.verify.sources.from_prometheus import read_window

pytestmark = pytest.mark.prometheus
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FAMILIES = ("under-used", "client-limited")


@pytest.fixture(scope="module")
def bed():
    """The modules of benchmarks/conditions, imported as the benchmark does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        from conditions import catalogue, exporter, exposition  # noqa: PLC0415

        return SimpleNamespace(catalogue=catalogue, exporter=exporter, exposition=exposition)


@pytest.fixture(scope="module")
def conditions(bed):
    return {family: bed.catalogue.draw_condition(family, 0, seed=2) for family in FAMILIES}


def test_two_servers_are_scraped_on_one_port(bed, conditions, start_server):
    with bed.exporter.Exporter({name: one.series for name, one in conditions.items()}, speed=20.0) as exporter:
        targets = [
            (exporter.address, {"__metrics_path__": exporter.path(name), "instance": name}) for name in conditions
        ]
        server = start_server("prometheus", targets=targets, interval_s=0.5)
        for name in conditions:
            server.wait_for(f'count_over_time(vllm:num_requests_running{{instance="{name}"}}[1h])', 12)
            server.wait_for(f'increase(vllm:generation_tokens_total{{instance="{name}"}}[1h])', 100)
    path = "/api/v1/label/__name__/values?" + urllib.parse.urlencode({"match[]": '{__name__=~"vllm:.*"}'})
    names = {one.name for one in conditions["under-used"].series}
    assert set(server.get(path)["data"]) == names


@pytest.mark.parametrize("store", ["prometheus", "victoria-metrics"])
def test_a_past_is_counted_as_in_memory(bed, conditions, start_server, store):
    history = [line for one in conditions.values() for line in bed.exposition.history_lines(one.series)]
    server = start_server(store, history="\n".join(history))
    for name, one in conditions.items():
        found = read_window(
            PrometheusClient(server.url), one.start_s, one.end_s, matchers=[f'instance="{name}-0"'], all_models=True
        )
        for counter in ("vllm:generation_tokens_total", "vllm:inter_token_latency_seconds_count"):
            grown = [total_increase([s for s in kept if s.name == counter]) for kept in (found, one.series)]
            assert grown[0] == pytest.approx(grown[1], rel=0.05)
