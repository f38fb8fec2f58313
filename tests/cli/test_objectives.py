"""--slo and --objective of simulate and tune."""

import json

import pytest

SERVER = ("--model", "qwen2.5-14b", "--gpu", "h200", "--max-model-len", "8192")
GRID = ("--max-num-seqs", "4,32", "--max-num-batched-tokens", "512", "--present", "4x512")
SMALL = ("lognormal:300:0.5:30:0.5", "--num-requests", "80", *SERVER, *GRID)
LENIENT = ("--slo", "ttft_p95=300ms", "--slo", "itl_p99=50ms")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("time,prompt_tokens,output_tokens\n" + "".join(f"{i / 4},300,30\n" for i in range(80)))
    return path


def test_targets_ask_for_the_highest_rate(run):
    code, out, err = run("simulate", *SMALL, *LENIENT, "--json")
    assert (code, err) == (0, "")
    study = json.loads(out)
    assert study["objective"]["kind"] == "rate"
    assert study["objective"]["targets"] == ["ttft_p95=300ms", "itl_p99=50ms"]
    few, many = (cell["highest_rate"]["rate_rps"] for cell in study["cells"])
    assert many > 2 * few > 0
    assert all(cell["attainment"]["met"] for cell in study["cells"])
    assert study["recommended"]["max_num_seqs"] == 32


def test_people_see_the_rates(run):
    code, out, err = run("simulate", *SMALL, *LENIENT)
    assert (code, err) == (0, "")
    assert "highest rate in requests/s that holds ttft_p95=300ms and itl_p99=50ms" in out.replace("\n", " ")
    assert "which ends by" in out
    assert out.splitlines()[-1].startswith("vllm serve")


def test_targets_out_of_reach_are_a_no(run):
    code, out, err = run("simulate", *SMALL, "--slo", "itl_p99=1ms", "--json")
    assert (code, err) == (1, "")
    study = json.loads(out)
    assert [cell["highest_rate"]["rate_rps"] for cell in study["cells"]] == [0, 0]
    assert study["findings"][0]["code"] == "targets-out-of-reach"


def test_the_least_latency_at_the_own_rate(run, table):
    code, out, err = run("simulate", table, *SERVER, *GRID, "--objective", "latency", "--json")
    assert (code, err) == (0, "")
    study = json.loads(out)
    assert study["open_loop"]
    assert study["objective"] == {"kind": "latency", "targets": [], "own_rate_rps": pytest.approx(4)}


def test_tune_stores_the_rates(run, tmp_path):
    code, out, err = run("tune", *SMALL, *LENIENT, "--study", tmp_path / "s", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["gain"] > 1
    stored = json.loads((tmp_path / "s/study.json").read_text())
    assert stored["cells"][0]["highest_rate"]["rate_rps"] > 0
    assert len((tmp_path / "s/trials.jsonl").read_text().splitlines()) == 2


def test_a_table_is_cut_to_a_thousand_requests_for_a_rate(run, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("time,prompt_tokens,output_tokens\n" + "".join(f"{i},10,2\n" for i in range(1200)))
    study = json.loads(run("simulate", path, *SERVER, *GRID, "--slo", "ttft_p95=300ms", "--json")[1])
    assert study["num_requests"] == 1000
    assert study["workload_source"].endswith("the first 1,000 of 1,200 requests")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--slo", "ttft=1"), "which percentile?"),
        (("--slo", "ttft_p95=1s", "--slo", "ttft_p95=2s"), "ttft_p95 has more than one limit"),
        (("--objective", "rate"), "the highest rate within which targets?"),
        (("--objective", "throughput", "--slo", "ttft_p95=1s"), "play no part in the throughput"),
        (("--objective", "latency"), "needs arrival times"),
        (("--objective", "goodput"), "goodput"),
    ],
)
def test_wrong_objectives_are_refused(run, options, message):
    code, _, err = run("simulate", *SMALL, *options)
    assert code == 2
    assert message in err


def test_a_server_is_not_measured_for_its_latency(run):
    code, _, err = run("tune", "fixed:8:8", "--engine", "live", "--objective", "latency", "--", "vllm", "serve", "m")
    assert code == 2
    assert "the engine live does not compare cells by latency" in err
