"""`maitre export`: rules and a dashboard for the metrics that a deployment has."""

import http.server
import json
import subprocess
import sys
import threading

import pytest
import yaml

SCRAPE = """\
vllm_num_requests_running{model_name="m"} 3.0
vllm_num_requests_waiting{model_name="m"} 0.0
vllm_gpu_cache_usage_perc{model_name="m"} 0.4
"""


@pytest.fixture
def scrape(tmp_path):
    """A saved scrape of an old server, relabelled."""
    path = tmp_path / "metrics.txt"
    path.write_text(SCRAPE, "utf-8")
    return path


def alerts(text):
    return {
        rule["alert"]: rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"] if "alert" in rule
    }


def test_rules_come_on_stdout_and_what_is_missing_on_stderr(run):
    code, out, err = run("export", "rules", "--vllm-version", "0.26.0", "--itl-p99", "50ms", "--ttft-p95", "0.5")
    assert code == 0
    assert {"VllmRequestsWaiting", "VllmPreemptions", "VllmItlUnstable", "VllmItlP99High", "VllmTtftP95High"} <= {
        *alerts(out)
    }
    assert err == "maitre: VllmRequestsRejected is left out: there is no vllm:admission_rejections_total\n"
    assert out.startswith("# maitre ")
    assert "vLLM 0.26.0" in out.splitlines()[0]


def test_rules_for_the_names_in_a_scrape(run, scrape):
    code, out, err = run("export", "rules", "--metrics", scrape)
    assert code == 0
    assert "vllm_gpu_cache_usage_perc" in out
    assert "vllm:" not in out
    assert "VllmPreemptions" not in alerts(out)
    assert "VllmPreemptions is left out: there is no vllm:num_preemptions_total" in err


def test_rules_for_the_names_of_a_server_that_is_up(run):
    class Metrics(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(SCRAPE.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        code, out, _ = run("export", "rules", "--metrics", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert code == 0
    assert "vllm_gpu_cache_usage_perc" in out


def test_rules_for_the_names_that_prometheus_lists(run):
    asked = []

    class Api(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status": "success", "data": ["up", "vllm_num_requests_running"]}')

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{server.server_port}/prometheus/api/v1/label/__name__/values"
        code, out, _ = run("export", "rules", "--metrics", place)
        server.shutdown()
    assert (code, [path.rstrip("?") for path in asked]) == (0, ["/prometheus/api/v1/label/__name__/values"])
    assert "absent(vllm_num_requests_running)" in out


def test_relabelled_names_without_a_scrape(run):
    _, out, _ = run("export", "rules", "--prefix", "vllm_")
    assert "vllm_kv_cache_usage_perc[5m]" in out
    assert "vllm:kv" not in out


def test_thresholds_from_the_command_line(run):
    _, out, _ = run("export", "rules", "--max-waiting", "5", "--queue-p95", "800ms", "--max-num-seqs", "96",
                    "--slo", "e2e_p90=20s")  # fmt: skip
    found = alerts(out)
    assert found["VllmRequestsWaiting"]["expr"].endswith("> 5")
    assert found["VllmQueueTimeHigh"]["expr"].endswith("> 0.8")
    assert found["VllmE2eP90High"]["expr"].endswith("> 20")
    assert "--max-num-seqs (96)" in found["VllmRequestsWaiting"]["annotations"]["description"]


@pytest.mark.parametrize("asked", [["--format", "prometheusrule"], ["--release", "kps", "--namespace", "prod"]])
def test_the_operators_object(run, asked):
    _, out, _ = run("export", "rules", *asked)
    made = yaml.safe_load(out)
    assert (made["apiVersion"], made["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert made["metadata"]["name"] == "maitre-vllm"
    if "--release" in asked:
        assert made["metadata"]["labels"] == {"release": "kps"}
        assert made["metadata"]["namespace"] == "prod"


def test_json_is_the_same_document(run):
    _, as_yaml, _ = run("export", "rules")
    _, as_json, _ = run("export", "rules", "--json")
    assert json.loads(as_json) == yaml.safe_load(as_yaml)


@pytest.mark.parametrize("kind", ["rules", "dashboard"])
def test_a_file_is_written(run, kind, tmp_path):
    _, printed, _ = run("export", kind)
    code, out, err = run("export", kind, "--out", tmp_path / "made")
    assert (code, out) == (0, "")
    assert (tmp_path / "made").read_text("utf-8") == printed
    assert err.endswith("made is written\n")


def test_the_dashboard_of_a_scrape(run, scrape):
    code, out, err = run("export", "dashboard", "--metrics", scrape, "--match", 'namespace="prod"', "--title", "Mine")
    content = json.loads(out)
    assert code == 0
    assert content["title"] == "Mine"
    assert 'vllm_gpu_cache_usage_perc{namespace="prod",model_name=~"$model_name"}' in json.dumps(content).replace(
        '\\"', '"'
    )
    assert "'Preemptions a minute' is left out: there is no vllm:num_preemptions_total" in err


def test_a_study_gives_its_limit_and_its_latencies(run, tmp_path):
    study = tmp_path / "study"
    asked = ["lognormal:200:0.5:100:0.5", "--num-requests", "200", "--model", "qwen2.5-7b", "--gpu", "H200"]
    assert run("tune", *asked, "--study", study)[0] == 0
    recommended = json.loads((study / "study.json").read_text("utf-8"))["recommended"]["max_num_seqs"]
    _, out, _ = run("export", "rules", "--study", study)
    found = alerts(out)
    assert f"--max-num-seqs ({recommended})" in found["VllmItlP99High"]["annotations"]["description"]
    assert "VllmTtftP95High" not in found  # all requests were there at once
    _, out, _ = run("export", "rules", "--study", study, "--itl-p99", "3s", "--max-num-seqs", "7")
    assert alerts(out)["VllmItlP99High"]["expr"].endswith("> 3")
    assert "--max-num-seqs (7)" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--metrics", "x", "--vllm-version", "0.26.0"], "--metrics and --vllm-version"),
        (["--metrics", "/no/such/file"], "no such file"),
        (["--vllm-version", "newest"], "not a version"),
        (["--prefix", "vllm"], "begins no metric's name"),
        (["--match", "namespace=prod"], "no label matcher"),
        (["--match", 'a="b"} or vector(1) #'], "no label matcher"),
        (["--slo", "itl_max=1s"], "tells no maximum"),
        (["--slo", "itl_p99=50ms", "--itl-p99", "60ms"], "more than one limit"),
        (["--queue-p95", "0"], "nothing takes no time"),
        (["--max-kv-usage", "1.5"], "--max-kv-usage"),
        (["--max-kv-usage", "nan"], "--max-kv-usage"),
        (["--max-preemptions", "0"], "--max-preemptions"),
        (["--study", "/no/such/study"], "no such file"),
    ],
)
@pytest.mark.parametrize("kind", ["rules", "dashboard"])
def test_wrong_input_is_refused_in_one_sentence(run, kind, words, complaint):
    code, out, err = run("export", kind, *words)
    assert (code, out) == (2, "")
    assert complaint in err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--by", "model name"], "no list of labels"),
        (["--name", "Not_a_name"], "no name of Kubernetes"),
        (["--label", "team"], "has no value"),
        (["--format", "groups", "--release", "x"], "of an object of Kubernetes"),
    ],
)
def test_wrong_input_of_rules(run, words, complaint):
    code, out, err = run("export", "rules", *words)
    assert (code, out) == (2, "")
    assert complaint in err


def test_a_folder_that_is_not_there_is_a_failure_of_the_disk(run):
    code, _, err = run("export", "rules", "--out", "/no/such/folder/rules.yaml")
    assert code == 3
    assert "cannot be written" in err


def test_a_scrape_without_anything_useful(run, tmp_path):
    path = tmp_path / "scrape"
    path.write_text('vllm:cache_config_info{block_size="16"} 1\n', "utf-8")
    for kind in ("rules", "dashboard"):
        code, out, err = run("export", kind, "--metrics", path)
        assert (code, out) == (2, "")
        assert "is possible" in err


def test_help_imports_nothing_heavy():
    code = "import sys, maitre.cli; sys.argv[0] = 'maitre'; maitre.cli.main(['export', 'rules', '--help'])"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=False)
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "maitre.cli.export_options" in names
    assert names & {"numpy", "pydantic", "yaml", "polars"} == set()
