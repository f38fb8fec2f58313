"""What a Prometheus API answers, and what it answers wrongly."""

import socket
import threading

import numpy as np
import pytest

from maitre.errors import InputError, SystemFailure
from maitre.prometheus import connection
from maitre.prometheus.access import Access
from maitre.prometheus.client import PrometheusClient


@pytest.fixture
def client(api):
    return PrometheusClient(api.url)


def result(kind, rows, **more):
    return {"status": "success", "data": {"resultType": kind, "result": rows}, **more}


def test_a_matrix(api, client):
    values = [[0, "0"], [15.5, "NaN"], [30, "+Inf"], [45, "-Inf"], [60, "1.5e+06"]]
    api.say(result("matrix", [{"metric": {"__name__": "a:b", "c": "d"}, "values": values}]))
    (series,) = client.query_range("x", 0, 60, 15)
    assert (series.name, series.labels) == ("a:b", {"c": "d"})
    np.testing.assert_array_equal(series.time_s, [0, 15.5, 30, 45, 60])
    np.testing.assert_array_equal(series.values, [0, np.nan, np.inf, -np.inf, 1.5e6])


def test_a_vector_without_a_name_and_an_empty_one(api, client):
    api.say(result("vector", [{"metric": {}, "value": [1.5, "2"]}]))
    assert [(one.name, one.values.tolist()) for one in client.query("x")] == [("", [2.0])]
    api.say(result("vector", []))
    assert client.query("x") == []


def test_a_number(api, client):
    api.say(result("scalar", [1.5, "2"]))
    assert [(one.name, one.time_s.tolist(), one.values.tolist()) for one in client.query("2")] == [("", [1.5], [2.0])]


def test_names(api, client):
    api.say({"status": "success", "data": ["a", "b"]})
    assert client.label_values("x") == ["a", "b"]
    api.say({"status": "success", "data": None})  # Thanos and old VictoriaMetrics for none
    assert client.label_values("x") == []


def test_remarks_are_kept_once(api, client):
    for _ in range(2):
        api.say(result("vector", [], warnings=["partial response"], infos=["no counter"], isPartial=True))
        client.query("x")
    assert client.remarks[:2] == ["partial response", "no counter"]
    assert len(client.remarks) == 3


REFUSALS = {
    "bad query": (400, {"status": "error", "error": "parse error: x"}, InputError, r"\(400: parse error: x\)"),
    "too many points": (
        400, {"status": "error", "error": "exceeded maximum resolution of 11,000 points"}, SystemFailure, "so large",
    ),
    "too many samples": (
        422, {"status": "error", "error": "query processing would load too many samples"}, SystemFailure, "so large",
    ),
    "execution": (422, {"status": "error", "error": "many-to-many matching"}, InputError, "cannot work out"),
    "an error that is a success": (200, {"status": "error", "error": "x"}, InputError, "cannot work out"),
    "time-out": (503, {"status": "error", "errorType": "timeout", "error": "query timed out"}, SystemFailure, "503"),
    "no login": (401, b"Unauthorized\n", InputError, "refuses who asks .401: Unauthorized"),
    "no tenant": (401, b"no org id\n", InputError, "X-Scope-OrgID"),
    "forbidden": (403, b"<html>", InputError, r"refuses who asks \(403\)"),
    "wrong path": (404, b"404 page not found", InputError, "a path may be missing"),
    "rate limit": (429, b"slow down", SystemFailure, "429: slow down"),
    "gateway": (502, b"<html>Bad gateway</html>", SystemFailure, r"fails \(502\)"),
    "web page": (200, b"<!doctype html><html>Grafana</html>", InputError, "web page"),
    "cut off": (200, b'{"status":"success","data":{"resultTy', SystemFailure, "cut off"),
    "other JSON": (200, {"hello": 1}, InputError, "does not answer as Prometheus"),
    "other data": (200, result("streams", [{}]), InputError, "does not answer as Prometheus"),
    "no number": (200, result("vector", [{"metric": {}, "value": [1, "x"]}]), InputError, "does not"),
    "bytes": (200, b"\xff\x00\xfe", InputError, "does not answer as Prometheus"),
    "nothing": (200, b"", InputError, "does not answer as Prometheus"),
    "deep": (200, b"[" * 100_000, InputError, "does not answer as Prometheus"),
    "plain 400": (400, b"missing -http.pathPrefix", InputError, "does not answer as .*pathPrefix"),
    "terminal codes": (400, {"status": "error", "error": "a\x1b[31m\nb"}, InputError, r"\(400: a \[31m b\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_an_answer_that_is_none(api, client, case):
    status, answer, kind, words = REFUSALS[case]
    api.say(answer, status)
    with pytest.raises(kind, match=words) as told:
        client.query("x")
    assert told.value.hint
    assert api.url in str(told.value)


def test_vllm_itself_is_no_prometheus(api, client):
    api.say({"detail": "Not Found"}, 404, {"Server": "uvicorn"})
    with pytest.raises(InputError, match="looks like vLLM itself"):
        client.query("x")


def test_a_redirect_is_named_and_not_followed(api, client):
    api.say(b"", 301, {"Location": "https://user:secret@other/x?token=secret"})
    with pytest.raises(InputError, match=r"redirects to other/x\n"):
        client.query("x")
    assert len(api.asked) == 1


def test_a_body_shorter_than_promised(api, client):
    api.say(b'{"status":', headers={"Content-Length": "1000"})
    with pytest.raises(SystemFailure, match="cut off"):
        client.query("x")


def test_an_answer_that_never_ends(api, client, monkeypatch):
    monkeypatch.setattr(connection, "MAX_BYTES", 2**20)
    api.say(b" " * (2**20 + 1))
    with pytest.raises(SystemFailure, match="more than 1 MiB"):
        client.query("x")


def test_a_server_that_says_nothing():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(SystemFailure, match=r"does not answer within 0\.05 s"):
            PrometheusClient(url, Access(timeout_s=0.05)).query("x")


@pytest.mark.parametrize("words", [b"SSH-2.0-OpenSSH_9.2\r\n", b""])
def test_what_does_not_speak_http(words):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up():
            while True:
                try:
                    caller, _ = listener.accept()
                except OSError:
                    return
                with caller:
                    caller.recv(1000)
                    caller.sendall(words)

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(SystemFailure, match="does not speak HTTP" if words else "hangs up"):
            PrometheusClient(f"http://127.0.0.1:{listener.getsockname()[1]}").query("x")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_host_that_is_unknown():
    with pytest.raises(SystemFailure, match=r"unknown|cannot be asked|nothing listens"):
        PrometheusClient("http://nowhere.invalid:9090", Access(timeout_s=5)).query("x")


def test_a_number_beyond_all_measures_is_none(api, client):
    api.say(result("matrix", [{"metric": {}, "values": [[0, "-1e308"], [15, "1e18"], [30, "7"]]}]))
    (series,) = client.query_range("x", 0, 30, 15)
    np.testing.assert_array_equal(series.values, [np.nan, np.nan, 7])


@pytest.mark.parametrize("moment", [-62135647200, 1e300])
def test_a_moment_outside_of_all_time_is_no_answer(api, client, moment):
    api.say(result("vector", [{"metric": {}, "value": [moment, "2"]}]))
    with pytest.raises(InputError):
        client.query("x")
