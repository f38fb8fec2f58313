"""`maitre verify` as a user calls it, on what a real vLLM on an H200 showed with its dials set wrongly on purpose."""

import gzip
import http.server
import json
import threading
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from maitre.cli import main
from maitre.cli.prometheus_options import ANYBODY
from maitre.cli.server_options import NO_SERVER
from maitre.cli.verify_options import LimitOptions, SourceOptions
from maitre.cli.verify_watch import watch_server

DATA = Path(__file__).parents[1] / "data/served_conditions"
CELLS = {"seq-capped": ("8", "8192"), "raise-token-budget": ("256", "256")}
LARGEST = ("256", "8192")
RECORDED = [
    (model, name, verdict)
    for model in ("qwen2.5-7b", "qwen2.5-14b")
    for name, verdict in {
        "seq-capped": "seq-capped",
        "kv-bound": "kv-bound",
        "kv-tight": "kv-bound",
        "raise-token-budget": "raise-token-budget",
        "defaults-suffice": "defaults-suffice",
        "client-limited": "client-limited",
        "idle": "cannot-tell",
    }.items()
]


def flags(name):
    seqs, tokens = CELLS.get(name, LARGEST)
    return ["--max-num-seqs", seqs, "--max-num-batched-tokens", tokens]


def run(capsys, *words):
    with pytest.raises(SystemExit) as exit_:
        main(["verify", *map(str, words)])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return exit_.value.code, out, err


def recording(model, name):
    return DATA / model / f"{name}.prom.gz"


@pytest.fixture
def scraped():
    """Serves scrapes of a recording one after the other, as /metrics."""
    servers = []

    def serve(model, name):
        texts = gzip.decompress(recording(model, name).read_bytes()).decode().split("# scraped ")[1:]
        bodies = iter([text.partition("\n")[2].encode() for text in texts])

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = next(bodies, b"")
                self.send_response(200 if body else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("model", "name", "verdict"), RECORDED)
def test_a_real_server_is_judged_rightly(capsys, model, name, verdict):
    code, out, _ = run(capsys, "--metrics", recording(model, name), *flags(name), "--json")
    answer = json.loads(out)
    assert answer["verdict"] == verdict
    assert code == (0 if verdict in {"defaults-suffice", "client-limited"} else 1)
    assert answer["findings"][0]["remedy"]


def test_prompts_between_decodes_make_two_paces(capsys):
    """On the 14B model the slow steps spread over many buckets, and nothing is claimed."""
    answers = {
        model: json.loads(run(capsys, "--metrics", recording(model, "two-modes"), *flags(""), "--json")[1])
        for model in ("qwen2.5-7b", "qwen2.5-14b")
    }
    assert answers["qwen2.5-7b"]["verdict"] == "other"
    assert answers["qwen2.5-7b"]["findings"][0]["remedy_code"] == "lower-token-budget"
    latency = answers["qwen2.5-14b"]["confirmations"][2]
    assert (latency["name"], latency["answer"]) == ("inter-token-latency", "cannot-tell")


def test_the_contract_of_the_json(capsys):
    answer = json.loads(
        run(capsys, "--metrics", recording("qwen2.5-7b", "seq-capped"), *flags("seq-capped"), "--json")[1]
    )
    assert answer["observed"]["engines"] == 1
    assert answer["observed"]["kv_tokens"] == 2_115_440
    assert answer["observed"]["itl_family"] == "vllm:inter_token_latency_seconds"
    assert {"code", "value", "remedy", "remedy_code", "evidence"} <= answer["findings"][0].keys()
    assert answer["findings"][0]["remedy_code"] == "raise-max-num-seqs"
    figures = answer["figures"]
    assert figures["running"] == pytest.approx(8, abs=1)
    assert figures["queue_time_mean_s"] < figures["ttft_mean_s"] < 60
    assert (figures["preemptions_per_min"], figures["prefix_hit_rate"]) == (0, None)  # prefix caching is off


def test_the_limits_come_from_the_command_that_started_the_server(capsys):
    words = ["--metrics", recording("qwen2.5-7b", "seq-capped"), "--json", "--", "vllm", "serve", "m"]
    answer = json.loads(run(capsys, *words, "--max-num-seqs", "8")[1])
    assert answer["deployment"]["max_num_seqs"] == 8
    assert answer["verdict"] == "seq-capped"


def test_without_limits_a_plateau_shows_them(capsys):
    _, out, _ = run(capsys, "--metrics", recording("qwen2.5-14b", "seq-capped"))
    assert out.startswith("seq-capped")
    assert "8 is where running stops" in out


def test_the_turn_is_simulated_when_model_and_gpu_are_named(capsys):
    words = ["--metrics", recording("qwen2.5-14b", "seq-capped"), *flags("seq-capped"), "--max-model-len", "32768"]
    answer = json.loads(run(capsys, *words, "--model", "qwen2.5-14b", "--gpu", "H200", "--json")[1])
    turn = answer["turn"]
    assert turn["turn"] == "raise-max-num-seqs"
    assert turn["expectations"]["credibility"]["doubt"] == ""
    assert turn["recommended"]["max_num_seqs"] > 8
    _, out, _ = run(capsys, *words, "--model", "qwen2.5-14b", "--gpu", "H200")
    assert "the smallest step that helps" in out


def test_a_ci_system_gets_a_junit_report_and_annotations(capsys, tmp_path):
    report = tmp_path / "verify.xml"
    words = ["--metrics", recording("qwen2.5-7b", "seq-capped"), *flags("seq-capped"), "--junit", report, "--github"]
    code, _, err = run(capsys, *words)
    suite = ET.parse(report).getroot()
    assert code == 1
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "2", "1")
    assert [case.get("name") for case in suite] == ["verdict", "waiting", "preemptions", "inter-token-latency"]
    assert "::error title=maitre verify%3A seq-capped::" in err


def test_a_url_is_scraped_for_a_while(capsys, scraped):
    url = scraped("qwen2.5-14b", "defaults-suffice")
    code, out, _ = run(capsys, "--metrics", url, "--for", "2s", "--every", "0.2s", *flags(""))
    assert code == 0
    assert "defaults-suffice" in out


def test_a_server_that_goes_away_leaves_what_was_read(capsys, scraped):
    url = scraped("qwen2.5-14b", "idle")  # it has no more than 18 scrapes
    _, out, _ = run(capsys, "--metrics", url, "--for", "2.5s", "--every", "0.1s")
    assert out.startswith("cannot-tell")
    assert "note: " in out


def test_a_watch_looks_again_and_again(capsys, scraped):
    sources = SourceOptions(metrics=(scraped("qwen2.5-14b", "defaults-suffice"),), every="0.05s")
    limits = LimitOptions(max_num_seqs=256, max_num_batched_tokens="8192")
    code = watch_server(sources, ANYBODY, limits, NO_SERVER, None, seed=0, num_looks=8)
    shown = capsys.readouterr().out
    assert code == 0
    assert "defaults-suffice" in shown
    assert "running" in shown


def test_two_files_are_compared_like_with_like(capsys):
    same = recording("qwen2.5-14b", "defaults-suffice")
    _, out, _ = run(capsys, "--before", same, "--after", same, "--json")
    assert json.loads(out)["verdict"] in {"unchanged", "not-comparable"}
    code, out, _ = run(capsys, "--before", same, "--after", recording("qwen2.5-14b", "seq-capped"), "--json")
    assert code == 1
    assert json.loads(out)["verdict"] == "not-comparable"


def test_production_is_held_against_a_study(capsys, tmp_path):
    study = tmp_path / "study"
    tune = [
        *("tune", "lognormal:600:0.4:200:0.4", "--num-requests", "600", "--study", str(study)),
        *("--model", "qwen2.5-14b", "--gpu", "H200", "--max-model-len", "32768"),
        *("--max-num-seqs", "32,256", "--max-num-batched-tokens", "8192", "--present", "256x8192"),
    ]
    with pytest.raises(SystemExit):
        main(tune)
    capsys.readouterr()
    words = ["--metrics", recording("qwen2.5-14b", "defaults-suffice"), *flags(""), "--study", study]
    code, out, _ = run(capsys, *words, "--json")
    drift = json.loads(out)["drift"]
    assert drift["verdict"] in {"keep", "cannot-tell"}
    assert code == 0
    _, out, _ = run(capsys, *words)
    assert drift["reason"].split(";")[0][:40] in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing to look at"),
        (["--metrics", "no-such-file"], "no such file"),
        (["--metrics", "http://127.0.0.1:9/metrics", "--for", "0s"], "127.0.0.1:9"),
        (["--prometheus", "ftp://x"], "address"),
        (["--before", "2h..1h"], "belong together"),
        (["--before", "2h..1h", "--after", "nothing"], "is no window"),
        (["--metrics", "x", "--metrics", "y", "--watch"], "one source"),
        (["--metrics", recording("qwen2.5-7b", "idle"), "--max-num-batched-tokens", "many"], "many"),
    ],
)
def test_wrong_input_is_told_in_a_sentence(capsys, words, told):
    code, out, err = run(capsys, *words)
    assert code in {2, 3}
    assert not out
    assert told in err
    assert "hint: " in err
