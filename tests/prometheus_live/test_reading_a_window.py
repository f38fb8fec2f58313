"""A window of a real Prometheus and of a real VictoriaMetrics: what vLLM's servers counted in it, whatever happened."""

import importlib.util
import time
from collections import Counter
from pathlib import Path

import prometheus_client
import pytest

from maitre.errors import InputError
from maitre.metric_series import histogram, increase, total_increase
from maitre.prometheus.client import PrometheusClient
from maitre.verify.sources.from_prometheus import read_window

pytestmark = pytest.mark.prometheus

spec = importlib.util.spec_from_file_location("vllm_history", Path(__file__).with_name("history.py"))
history = importlib.util.module_from_spec(spec)
spec.loader.exec_module(history)

START_S = 1_700_000_000
END_S = START_S + 86_400
SCRAPE_S = 60
FAMILIES = ("inter_token_latency_seconds", "request_prompt_tokens", "request_decode_time_seconds")


def write(*servers, prefix="vllm:", families=FAMILIES):
    return history.write_history(servers, START_S, END_S, SCRAPE_S, prefix, families)


def at(*moments_s):
    return tuple(START_S + moment_s for moment_s in moments_s)


EVENTFUL = {
    "restarts:8000": [at(-1000, 40_000), at(40_060, 86_400)],
    "restarts-unseen:8000": [at(-10, 600), at(660, 86_400)],
    "comes:8000": [at(60_030, 90_000)],
    "goes:8000": [at(-500_000, 59_990)],
    "out-of-reach:8000": [at(-5000, 90_000)],
}
"""Of each server the processes, from start to end. The second's counters are past their old values by the next step."""
OUT_OF_REACH = at(71_000, 72_600)


def eventful():
    text = write(*(history.lives(instance, *spans) for instance, spans in EVENTFUL.items()))
    return "\n".join(
        line
        for line in text.splitlines()
        if "out-of-reach" not in line or not OUT_OF_REACH[0] < float(line.split()[-1]) < OUT_OF_REACH[1]
    )


@pytest.fixture(scope="module", params=["prometheus", "victoria-metrics"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def window(kind, start_server):
    client, notes = PrometheusClient(start_server(kind, history=eventful()).url), []
    return read_window(client, START_S, END_S, on_note=notes.append), client, notes


def expected_s(spans):
    """Seconds that a server ran within the window, as far as its scrapes tell."""
    scrapes = [[t for t in range(START_S, END_S + 1, SCRAPE_S) if begin <= t <= end] for begin, end in spans]
    first, *others = [times for times in scrapes if times]
    restarts = sum(times[-1] - begin for times, (begin, _) in zip(others, spans[1:], strict=True))
    return first[-1] - first[0] + restarts


@pytest.mark.parametrize("instance", EVENTFUL)
def test_nothing_that_a_scrape_saw_is_lost(window, instance):
    mine = [one for one in window[0] if one.place == instance]
    expected = expected_s(EVENTFUL[instance])
    for name, rate in history.RATES.items():
        gains = [increase(one) for one in mine if one.name == f"vllm:{name}"]
        assert gains == [pytest.approx(rate * expected)]
    counted = histogram(mine, "vllm:inter_token_latency_seconds")
    assert counted.count == pytest.approx(history.REQUESTS_RPS * expected)
    assert counted.mean == pytest.approx(100)


def test_it_takes_ten_requests_at_most(window):
    _, client, notes = window
    assert client.num_requests <= 10
    assert notes == []
    assert client.remarks == []


def test_gauges_are_read_a_thousand_times_and_only_while_there_is_a_server(window):
    running = {one.place: one for one in window[0] if one.name == "vllm:num_requests_running"}
    assert len(running["restarts:8000"].values) == 1001
    assert set(running["goes:8000"].values) == {8, 9, 10, 11, 12}
    assert running["goes:8000"].time_s[-1] <= START_S + 60_000 + 300
    assert running["comes:8000"].time_s[0] >= START_S + 60_000


def test_buckets_of_families_that_nobody_asks_for_are_not_read(window):
    names = Counter(one.name for one in window[0])
    assert names["vllm:request_prompt_tokens_bucket"] == len(EVENTFUL) * (len(history.TOKENS) + 1)
    assert not any("request_decode_time" in name for name in names)


@pytest.mark.parametrize("life_s", [4800, 360])
def test_restarts_that_are_too_many_are_told(kind, start_server, life_s):
    """Now and then, and one after the other all day."""
    period_s = life_s + 120
    spans = [at(begin, begin + life_s) for begin in range(0, 86_400 - period_s, period_s)]
    text = write(history.lives("a:8000", *spans), families=FAMILIES[:1])
    client, notes = PrometheusClient(start_server(kind, history=text).url), []
    found = read_window(client, START_S, END_S, on_note=notes.append)
    assert client.num_requests <= 10
    assert len(notes) == 1
    assert "started, stopped or restarted too often" in notes[0]
    counted = total_increase([one for one in found if one.name == "vllm:prompt_tokens_total"])
    assert 0.7 * expected_s(spans) * 500 < counted <= expected_s(spans) * 500


@pytest.fixture(scope="module")
def two_models(kind, start_server):
    """One under Ray's spelling, the other scraped by two jobs; and somebody else's metric."""
    parts = [
        write(history.lives("a:8000", at(0, 86_400), model_name="small"), prefix="ray_vllm_"),
        write(history.lives("b:8000", at(0, 86_400), model_name="large", job="pods")),
        write(history.lives("b:8000", at(0, 86_400), model_name="large", job="services")),
        *(f"llm_num_requests_running 1 {t}" for t in range(START_S, END_S, SCRAPE_S)),
    ]
    return PrometheusClient(start_server(kind, history="\n".join(parts)).url)


def test_several_models_are_not_mixed_by_accident(two_models):
    with pytest.raises(InputError, match="of 2 models: 'large', 'small'"):
        read_window(two_models, START_S, END_S)


@pytest.mark.parametrize(("model", "instance"), [("small", "a:8000"), ("large", "b:8000")])
def test_one_model_and_the_cache_of_its_servers(two_models, model, instance):
    found = read_window(two_models, START_S, END_S, model_name=model)
    assert {one.place for one in found} == {instance}
    assert sum(one.name == "vllm:cache_config_info" for one in found) == 1
    assert all(one.name.startswith("vllm:") for one in found)
    requests = total_increase([one for one in found if one.name == "vllm:request_success_total"])
    assert requests == pytest.approx(86_400)


def test_all_models_when_asked_for(two_models):
    notes = []
    found = read_window(two_models, START_S, END_S, all_models=True, on_note=notes.append)
    assert {one.labels["model_name"] for one in found if "model_name" in one.labels} == {"small", "large"}
    assert ["two scrape jobs" in note for note in notes] == [True]


def test_matchers_choose_the_servers(two_models):
    found = read_window(two_models, START_S, END_S, matchers=["instance=~b.*", "job=pods"])
    assert {(one.place, one.labels["job"]) for one in found} == {("b:8000", "pods")}


def test_matchers_that_fit_nothing(two_models):
    with pytest.raises(InputError, match=r'has nothing of vLLM in this window: looked for .*instance="c"') as told:
        read_window(two_models, START_S, END_S, matchers=["instance=c"])
    assert told.value.hint.startswith('without instance="c" it has ray_vllm_cache_config_info, ')


def test_a_model_that_is_not_there(two_models):
    with pytest.raises(InputError, match="nothing of a model 'other' in this window") as told:
        read_window(two_models, START_S, END_S, model_name="other")
    assert told.value.hint == "there are 'large', 'small'"


def test_a_window_without_samples(two_models):
    with pytest.raises(InputError, match="in this window"):
        read_window(two_models, START_S - 900_000, START_S - 800_000)


def test_a_server_without_vllm_names_what_is_similar(kind, start_server):
    text = write(history.lives("a:8000", at(0, 3600)), prefix="llm_", families=())
    client = PrometheusClient(start_server(kind, history=text).url)
    with pytest.raises(InputError, match="has nothing of vLLM") as told:
        read_window(client, START_S, START_S + 3600)
    assert "llm_cache_config_info" in told.value.hint
    found = read_window(client, START_S, START_S + 3600, prefixes=["llm_"])
    assert "vllm:num_requests_running" in {one.name for one in found}


def test_what_is_scraped_right_now_can_be_read(kind, start_server):
    registry = prometheus_client.CollectorRegistry()
    running = prometheus_client.Gauge("vllm:num_requests_running", "", ["model_name"], registry=registry)
    running.labels("m").set(7)
    tokens = prometheus_client.Counter("vllm:generation_tokens", "", ["model_name"], registry=registry)
    tokens.labels("m").inc(5)
    exposed, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    try:
        target = f"127.0.0.1:{exposed.server_port}"
        server = start_server(kind, targets=[(target, {"cluster": "c"})], interval_s=0.2)
        # VictoriaMetrics shows nothing at steps of 15 s until a series is as old as that.
        num_scrapes = 80 if kind == "victoria-metrics" else 5
        server.wait_for('count_over_time({__name__=~"vllm.num_requests_running"}[1m])', at_least=num_scrapes)
        now_s = time.time()
        found = read_window(PrometheusClient(server.url), now_s - 60, now_s, matchers=["cluster=c"])
    finally:
        exposed.shutdown()
        exposed.server_close()
        thread.join()
    last = {one.name: one.values[-1] for one in found}
    assert (last["vllm:num_requests_running"], last["vllm:generation_tokens_total"]) == (7, 5)
