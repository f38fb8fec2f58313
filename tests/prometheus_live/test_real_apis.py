"""The client gets the same from a real Prometheus and a real VictoriaMetrics."""

import numpy as np
import pytest

from maitre.errors import MaitreError
from maitre.prometheus.client import PrometheusClient

pytestmark = pytest.mark.prometheus

START_S = 1_700_000_000
STEP_S = 15


def history():
    """An hour of one counter and one gauge."""
    lines = []
    for i in range(240):
        moment_s = START_S + i * STEP_S
        lines.append(f'vllm:prompt_tokens_total{{engine="0",model_name="m",instance="a:8000"}} {i * 100} {moment_s}')
        lines.append(f'vllm:num_requests_running{{engine="0",model_name="m",instance="a:8000"}} {i % 7} {moment_s}')
    return "\n".join(lines)


@pytest.fixture(scope="module", params=["prometheus", "victoria-metrics"])
def server(request, start_server):
    return start_server(request.param, history=history(), prefix="/metrics/store")


@pytest.fixture
def client(server):
    return PrometheusClient(server.url)


def test_a_counter_comes_as_it_was_written(client):
    found = client.query_range("vllm:prompt_tokens_total", START_S, START_S + 3585, 15)
    assert [(one.name, one.labels["instance"], one.engine[1]) for one in found] == [
        ("vllm:prompt_tokens_total", "a:8000", "0")
    ]
    assert found[0].values.tolist() == [100.0 * i for i in range(240)]
    assert found[0].time_s.tolist() == [START_S + 15.0 * i for i in range(240)]


def test_a_question_too_long_for_an_address_is_posted(client):
    expr = " or ".join(f'vllm:num_requests_running{{instance="b{i}:8000"}}' for i in range(200))
    found = client.query(f"{expr} or vllm:num_requests_running", START_S + 150)
    assert [one.values.tolist() for one in found] == [[10 % 7]]


def test_numbers_without_a_name_or_out_of_range(client):
    assert client.query("1/0", START_S)[0].values.tolist() == [np.inf]


def test_what_is_not_a_number(client, server):
    found = client.query("vllm:num_requests_running / 0 - vllm:num_requests_running / 0", START_S + 15)
    kept = {"Prometheus": [("", True)], "VictoriaMetrics": []}  # the latter leaves such values out
    assert [(one.name, np.isnan(one.values).all()) for one in found] == kept[server.name]


def test_the_names_that_the_server_has(client):
    names = client.label_values("__name__", ['{__name__=~"vllm.+"}'], START_S, START_S + 3600)
    assert sorted(names) == ["vllm:num_requests_running", "vllm:prompt_tokens_total"]
    assert client.label_values("model_name", ["vllm:num_requests_running"], START_S, START_S + 3600) == ["m"]


def test_an_address_without_its_path(server):
    root = server.url.removesuffix("/metrics/store")
    with pytest.raises(MaitreError, match=r"has no Prometheus API|does not answer as") as told:
        PrometheusClient(root).query("up")
    assert "path" in told.value.hint


def test_a_query_that_is_no_query(client):
    with pytest.raises(MaitreError, match="cannot work out the query") as told:
        client.query("sum(((")
    assert told.value.exit_code == 2


def test_more_points_than_are_given(client):
    with pytest.raises(MaitreError, match="so large a question") as told:
        client.query_range("vllm:num_requests_running", START_S, START_S + 400_000, 1)
    assert "shorter window" in told.value.hint
    assert told.value.exit_code == 3
