"""Who answers at an address, and what to do when it is not a vLLM that can be used."""

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from maitre.errors import SystemFailure, UsageError
from maitre.trial.probe import describe_listener, get, normal_base_url, probe

MODELS = json.dumps({"data": [{"id": "a", "owned_by": "vllm", "max_model_len": 4096}, {"id": "lora"}]})
VLLM = {"/version": '{"version": "0.26.0"}', "/metrics": "vllm:num_requests_running 0", "/v1/models": MODELS}


@contextmanager
def serving(answers, key=None, status=404):
    """A server with these answers; its address."""

    class Handler(BaseHTTPRequestHandler):
        server_version = "Fake/1"

        def do_GET(self):
            locked = key and self.path.startswith("/v1") and self.headers["Authorization"] != f"Bearer {key}"
            self.send_response(401 if locked else 200 if self.path in answers else status)
            self.end_headers()
            self.wfile.write(answers.get(self.path, "").encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def listening(greeting=None):
    """A port that accepts, then says this (nothing at all for None); its address."""

    def run():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            kept.append(connection)
            if greeting is not None:
                connection.recv(999)
                connection.sendall(greeting)
                connection.close()

    kept = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=run, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for connection in kept:
        connection.close()


def test_a_vllm_server_is_described():
    with serving(VLLM) as url:
        found = probe(f"{url}/v1/")
        assert found.base_url == url
        assert (found.version, found.model_names, found.max_model_len, found.has_metrics) == (
            "0.26.0", ("a", "lora"), 4096, True,
        )  # fmt: skip
        assert describe_listener("127.0.0.1", int(url.rsplit(":", 1)[1])) == "vLLM 0.26.0 with a"


def test_vllm_without_statistics_or_behind_a_gateway_is_still_vllm():
    with serving({"/v1/models": MODELS}) as url:
        assert (probe(url).version, probe(url).has_metrics) == (None, False)
    with serving({"/v1/models": '{"data": [{"id": 3, "max_model_len": null}, "x"]}', "/metrics": "vllm:x 1"}) as url:
        assert (probe(url).model_names, probe(url).max_model_len) == (("3",), None)


def test_a_key_is_asked_for_and_used():
    with serving(VLLM, key="k") as url:
        with pytest.raises(UsageError, match="asks for an API key") as caught:
            probe(url)
        assert "--api-key" in caught.value.hint
        with pytest.raises(UsageError, match="refuses the API key"):
            probe(url, "wrong")
        assert probe(url, "k").model_names == ("a", "lora")


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"/v1/models": "<html>"},
        {"/v1/models": '{"data": [{"id": "a", "owned_by": "openai"}]}'},
        {"/v1/models": "[]"},
        {"/v1/models": "[" * 100_000},
    ],
)
def test_another_http_server_is_not_taken_for_vllm(answers):
    with serving(answers) as url, pytest.raises(UsageError, match=r"is not vLLM: Fake/1 .* answers there") as caught:
        probe(url)
    assert caught.value.hint


def test_a_server_with_an_error_of_its_own_is_no_wrong_address():
    with serving({}, status=503) as url, pytest.raises(SystemFailure, match="HTTP 503"):
        probe(url)


def test_a_wrong_port_says_that_nothing_listens():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(SystemFailure, match=f"nothing listens at http://127.0.0.1:{port}") as caught:
            probe(f"http://127.0.0.1:{port}")
        assert caught.value.hint
        assert describe_listener("127.0.0.1", port) is None


def test_a_server_that_does_not_answer_is_given_up():
    with listening() as url, pytest.raises(SystemFailure, match=r"does not answer within 0\.2 s"):
        probe(url, timeout_s=0.2)


@pytest.mark.parametrize("greeting", [b"SSH-2.0-x\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"])
def test_what_speaks_no_http_or_breaks_off_is_said(greeting):
    with listening(greeting) as url, pytest.raises(SystemFailure) as caught:
        probe(url)
    assert url in str(caught.value)


def test_an_unknown_host_is_said():
    with pytest.raises(SystemFailure, match=r"the host of http://nowhere\.invalid is unknown|cannot be asked"):
        probe("http://nowhere.invalid")


@pytest.mark.parametrize(
    "url", ["", "h:8000", "ftp://h", "http://", "http://h:x", "http://h:0", "http://h?a=1", "http://a b"]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(UsageError, match="not the address of a server"):
        normal_base_url(url)


def test_a_proxy_is_not_used_for_this_machine(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(VLLM) as url:
        assert get(f"{url}/version").status == 200
        assert get(f"{url.replace('127.0.0.1', 'localhost')}/version").status == 200
    with pytest.raises(SystemFailure):
        get("http://example.invalid/version")
