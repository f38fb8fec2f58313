"""`maitre budget --metrics`: a scrape from a file, stdin or a server, and one sentence for every mistake."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

SCRAPE = (
    'vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",gpu_memory_utilization="0.9",'
    'num_gpu_blocks="33153"} 1.0\n'
)


@pytest.fixture
def server():
    """A server that answers a scrape at /metrics, to those with the key if there is one."""
    answers = {"text": SCRAPE, "key": None, "status": 200}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            allowed = answers["key"] is None or self.headers.get("Authorization") == f"Bearer {answers['key']}"
            status = 401 if not allowed else answers["status"] if self.path == "/metrics" else 404
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answers["text"].encode() if status == 200 else b"")

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}", answers
    http.shutdown()
    http.server_close()


def test_every_public_scrape_through_the_verb(run, shared_path):
    keys = {"num_gpu_blocks", "block_size", "kv_tokens", "engines"}
    wrong, num_checked = [], 0
    for case in json.loads((shared_path / "cases" / "cases.json").read_text("utf-8")):
        if case["kind"] != "metrics" or not case["files"][0].endswith(".prom"):
            continue
        code, out, _ = run("budget", "--metrics", shared_path / "cases" / case["files"][0], "--json")
        answer = json.loads(out)
        assert code == (1 if answer["kv_tokens"] is None else 0)
        num_checked += len(case["expect"].keys() & keys)
        wrong += [(case["id"], key) for key in case["expect"].keys() & keys if case["expect"][key] != answer[key]]
    assert not wrong
    assert num_checked >= 10


def test_a_file_gives_the_pool_and_counts_sequences(run, tmp_path):
    file = tmp_path / "metrics.txt"
    file.write_text(SCRAPE * 2)
    code, out, err = run("budget", "--metrics", file, "fixed:512:256", "--model", "Qwen2.5-14B", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["kv_tokens"], found["num_gpu_blocks"], found["engines"]) == (530_448, 33_153, 1)
    assert (found["kv_bytes_per_token"], found["max_seqs"]) == (196_608, int((33_153 - 1) / 40.4375))


@pytest.mark.parametrize("path", ["", "/", "/metrics", "/v1"])
def test_a_server_is_asked(run, server, path):
    url, _ = server
    code, out, _ = run("budget", "--metrics", url + path)
    assert code == 0
    assert "530,448 tokens" in out


def test_a_server_that_asks_for_a_key(run, server, monkeypatch):
    url, answers = server
    answers["key"] = "secret"
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    code, _, err = run("budget", "--metrics", url)
    assert code == 2
    assert "asks for an API key" in err
    assert run("budget", "--metrics", url, "--api-key", "secret")[0] == 0


def test_a_server_that_fails_or_is_not_there(run, server):
    url, answers = server
    answers["status"] = 503
    code, _, err = run("budget", "--metrics", url)
    assert (code, "HTTP 503" in err) == (3, True)
    code, _, err = run("budget", "--metrics", "http://127.0.0.1:9")
    assert (code, "nothing listens" in err) == (3, True)


def test_a_server_with_no_vllm_behind_it(run, server):
    url, answers = server
    answers["text"] = "process_cpu_seconds_total 5\n"
    code, _, err = run("budget", "--metrics", url)
    assert (code, "no vLLM metrics" in err) == (2, True)


def test_computed_beside_what_the_server_has(run, tmp_path):
    file = tmp_path / "metrics.txt"
    file.write_text(SCRAPE)
    flags = ("--max-num-seqs", "1024", "--max-num-batched-tokens", "8192", "--max-model-len", "8192", "--compiled")
    code, out, _ = run("budget", "--metrics", file, "--model", "Qwen2.5-14B", "--gpu", "H200", *flags, "--json")
    comparison = json.loads(out)["comparison"]
    assert code == 0
    assert comparison["computed_kv_tokens"] == pytest.approx(530_448, rel=1e-4)
    assert abs(comparison["difference_gib"]) < 0.02


@pytest.mark.parametrize(("content", "said"), [(b"", "empty"), (b"{}", "no vLLM metrics"), (b"\xff\0\xfe", "no vLLM")])
def test_a_bad_file_gets_one_message_and_exit_code_2(run, tmp_path, content, said):
    file = tmp_path / "metrics.txt"
    file.write_bytes(content)
    code, out, err = run("budget", "--metrics", file)
    assert (code, out) == (2, "")
    assert said in err


def test_a_file_too_large_for_a_scrape_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr("maitre.cli.budget_sources.MAX_SCRAPE_BYTES", 1000)
    file = tmp_path / "metrics.txt"
    file.write_text(SCRAPE * 99)
    code, _, err = run("budget", "--metrics", file)
    assert (code, "no scrape of /metrics" in err) == (2, True)
