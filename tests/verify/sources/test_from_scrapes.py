"""A server scraped for a while: what was read is kept, whatever happens on the way."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from maitre.errors import InputError, SystemFailure, UsageError
from maitre.metric_series import increase
from maitre.prometheus.access import Access
from maitre.verify.sources.from_scrapes import scrape_for


@contextmanager
def metrics_server(answers, seen=None):
    """Answers one after the other, the last one again and again: a text, a status, or (status, headers, text).

    Args:
        answers: what to answer.
        seen: the headers of each request are appended to it.
    """
    turns = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer = turns.pop(0) if len(turns) > 1 else turns[0]
            if seen is not None:
                seen.append({"path": self.path, **self.headers})
            status, headers, text = (
                (answer, {}, "") if isinstance(answer, int)
                else (200, {}, answer) if isinstance(answer, str | bytes) else answer
            )  # fmt: skip
            body = text.encode() if isinstance(text, str) else text
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self, interrupt_after=None):
        self.now_s, self.slept, self._interrupt_after = 1_000_000.0, [], interrupt_after

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.slept.append(seconds)
        if self._interrupt_after is not None and len(self.slept) >= self._interrupt_after:
            self.now_s += seconds / 2
            raise KeyboardInterrupt
        self.now_s += seconds


def scrape(tokens, running=8):
    return (
        f'vllm:num_requests_running{{engine="0"}} {running}\n'
        f'vllm:generation_tokens_total{{engine="0"}} {tokens}\n'
        "process_start_time_seconds 999000\n"
    )


def run(url, clock=None, duration_s=20.0, every_s=5.0, access=None, **options):
    clock = clock or Clock()
    access = access or Access(timeout_s=5.0)
    return scrape_for(url, duration_s, every_s, access, clock=clock, sleep=clock.sleep, **options)


def named(scraped, name):
    (one,) = [series for series in scraped.series if series.name == name]
    return one


def test_it_is_scraped_from_the_first_moment_to_the_last():
    with metrics_server([scrape(100 * i) for i in range(10)]) as url:
        found = run(url)
    assert found.num_scrapes == 5
    tokens = named(found, "vllm:generation_tokens_total")
    assert (tokens.time_s - 1_000_000).tolist() == [0, 5, 10, 15, 20]
    assert increase(tokens) == 400
    assert found.notes == ()
    assert named(found, "process_start_time_seconds").values.tolist() == [999000] * 5


@pytest.mark.parametrize("path", ["", "/", "/metrics", "/v1", "/metrics/"])
def test_the_address_may_be_written_in_many_ways(path):
    seen = []
    with metrics_server([scrape(1)], seen) as url:
        assert run(url + path, duration_s=0).num_scrapes == 1
    assert seen[0]["path"] == "/metrics"


def test_who_asks_is_told():
    seen = []
    access = Access(headers=(("X-Team", "a"),), bearer_token="secret")
    with metrics_server([scrape(1)], seen) as url:
        run(url, duration_s=0, access=access)
        run(url.replace("http://", "http://user:word@"), duration_s=0)
    assert (seen[0]["X-Team"], seen[0]["Authorization"]) == ("a", "Bearer secret")
    assert seen[1]["Authorization"] == "Basic dXNlcjp3b3Jk"


def test_a_slow_server_is_scraped_less_often_but_no_longer():
    class SlowClock(Clock):
        def __call__(self):
            self.now_s += 2.0
            return self.now_s

    with metrics_server([scrape(100 * i) for i in range(10)]) as url:
        found = run(url, SlowClock())
    times = named(found, "vllm:generation_tokens_total").time_s
    assert 1 < found.num_scrapes < 5
    assert times[-1] - times[0] < 20 + 5


def test_a_server_that_is_away_in_between_leaves_a_gap_and_a_note():
    with metrics_server([scrape(0), scrape(100), 503, "<html>bad gateway</html>", scrape(400)]) as url:
        found = run(url)
    tokens = named(found, "vllm:generation_tokens_total")
    assert (tokens.time_s - 1_000_000).tolist() == [0, 5, 20]
    assert found.notes[0].startswith("2 of 5 scrapes failed")


def test_what_was_read_before_an_interrupt_is_kept():
    with metrics_server([scrape(100 * i) for i in range(10)]) as url:
        found = run(url, Clock(interrupt_after=3), duration_s=60)
    assert found.num_scrapes == 3
    assert found.notes == ("interrupted after 12.5 s of 60 s",)


REFUSED = {
    "asks for a login": (401, UsageError, "refuses who asks"),
    "a wrong path": (404, InputError, "HTTP 404"),
    "still loading": (503, SystemFailure, "HTTP 503"),
    "a login page": ("<!DOCTYPE html><form>", InputError, "web page"),
    "a redirect": ((302, {"Location": "https://login.example/x?secret=1"}, ""), InputError, "to https://login"),
    "another server": ("node_load1 0.5\n", InputError, "no vLLM metrics"),
    "without statistics": ("python_info 1\nprocess_start_time_seconds 5\n", InputError, "no vLLM metrics"),
    "not text at all": (b"\x00\xff\xfe" * 100, InputError, "no vLLM metrics"),
}


@pytest.mark.parametrize(("answer", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_at_the_first_scrape_is_one_clear_error(answer, error, words):
    with metrics_server([answer]) as url, pytest.raises(error, match=words) as caught:
        run(url)
    assert caught.value.hint
    assert "secret" not in str(caught.value)


def test_nobody_listens():
    with metrics_server([scrape(1)]) as url:
        pass
    with pytest.raises(SystemFailure, match="nothing listens"):
        run(url)


@pytest.mark.parametrize("url", ["host:8000", "ftp://host/metrics", "http://", "http://user:secret@ho st"])
def test_what_is_no_address_is_a_usage_error(url):
    with pytest.raises(UsageError, match="not the address") as caught:
        run(url)
    assert "secret" not in str(caught.value)


def test_servers_can_be_told_apart_and_logins_are_not_shown():
    with metrics_server([scrape(1)]) as url:
        found = run(url.replace("http://", "http://user:secret@"), duration_s=0, instance="blue:8000")
    assert {one.place for one in found.series} == {"blue:8000"}
    assert found.source == f"{url}"


def test_names_that_somebody_changed_are_told():
    with metrics_server(["llm_num_requests_running 5\n"]) as url:
        found = run(url, duration_s=0, prefixes=("llm_",))
    assert named(found, "vllm:num_requests_running").values.tolist() == [5]
