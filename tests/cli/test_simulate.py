"""`maitre simulate`: the keys of its JSON, the surface for people, and that options do what they say."""

import json

import pytest

SERVER = ("--model", "qwen2.5-14b", "--gpu", "h200", "--max-model-len", "8192")
GRID = ("--max-num-seqs", "8,32", "--max-num-batched-tokens", "512,2k", "--present", "8x512")
SMALL = ("fixed:64:16", "--num-requests", "200", *SERVER, *GRID)

PERCENTILES = {"p50", "p95", "p99", "max"}


def simulate(run, *arguments):
    code, out, err = run("simulate", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_json_holds_every_cell_and_the_recommended_one(run):
    study = simulate(run, *SMALL)
    cells = study["cells"]
    assert [(c["max_num_seqs"], c["max_num_batched_tokens"]) for c in cells] == [
        (8, 512),
        (32, 512),
        (8, 2000),
        (32, 2000),
    ]
    for cell in cells:
        assert cell.keys() >= {
            *("max_num_seqs", "max_num_batched_tokens", "total_tokens_per_s", "output_tokens_per_s"),
            *("ttft_s", "itl_s", "num_preemptions", "kv_usage", "bound_by"),
        }
        assert cell["ttft_s"].keys() == cell["itl_s"].keys() == PERCENTILES
        assert cell["bound_by"] in {"seqs", "token-budget", "kv-blocks", "requests"}
        assert cell["total_tokens_per_s"] == pytest.approx(5 * cell["output_tokens_per_s"])
    assert study["recommended"].keys() == {"max_num_seqs", "max_num_batched_tokens"}
    assert study["recommended"] == study["recommendation"]["recommended"]
    assert study["schema_version"] == "maitre-study-1"


def test_people_get_the_matrix_the_answer_and_the_command(run):
    code, out, err = run("simulate", *SMALL)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    for words in ("useful tokens/s", "★", "●", "seqs × tokens", "KV usage", "distance to the limit"):
        assert words in out
    assert out.splitlines()[-1].startswith("vllm serve Qwen/Qwen2.5-14B --gpu-memory-utilization 0.92")


def test_the_present_cell_is_vllms_default_when_not_given(run):
    study = simulate(run, "fixed:64:16", "--num-requests", "50", *SERVER, *GRID[:4])
    assert study["recommendation"]["baseline"] == {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    assert len(study["cells"]) == 5


def test_without_lists_the_grid_is_the_classical_one(run):
    assert len(simulate(run, "fixed:64:4", "--num-requests", "20", *SERVER, "--present", "32x4096")["cells"]) == 25


def test_the_automatic_grid_has_the_present_cell(run):
    study = simulate(run, "fixed:64:4", "--num-requests", "100", *SERVER, "--grid", "auto", "--present", "20x3000")
    assert {(c["max_num_seqs"], c["max_num_batched_tokens"]) for c in study["cells"]} >= {(20, 3000)}


def test_a_spec_is_drawn_four_times_a_slot(run):
    assert simulate(run, "fixed:8:2", *SERVER, *GRID)["num_requests"] == 1000
    assert simulate(run, "fixed:8:2", *SERVER, "--max-num-seqs", "300", "--max-num-batched-tokens", "512",
                    "--present", "8x512")["num_requests"] == 1200  # fmt: skip


def test_the_same_command_gives_the_same_output(run):
    assert run("simulate", *SMALL) == run("simulate", *SMALL)


def test_a_known_pool_replaces_the_estimate(run):
    study = simulate(run, *SMALL, "--num-gpu-blocks", "100")
    assert {cell["num_gpu_blocks"] for cell in study["cells"]} == {100}
    assert max(cell["kv_usage_max"] for cell in study["cells"]) > 0.9


def test_open_loop_takes_the_times_of_the_table(run, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("time,prompt_tokens,output_tokens\n" + "".join(f"{i},64,16\n" for i in range(20)))
    closed, opened = (simulate(run, table, *SERVER, *GRID, *extra) for extra in ((), ("--open-loop",)))
    assert closed["cells"][0]["duration_s"] < 5
    assert opened["cells"][0]["duration_s"] > 19
    assert opened["open_loop"]
    assert opened["limits"] is None
    assert "requests come at the workload's own times" in run("simulate", table, *SERVER, *GRID, "--open-loop")[1]


def test_cells_that_cannot_serve_are_told_apart(run):
    study = simulate(run, "fixed:64:16", "--num-requests", "50", "--model", "qwen2.5-14b", "--gpu", "a100-40gb",
                     "--max-model-len", "8192", "--max-num-seqs", "8", "--max-num-batched-tokens", "2048,128K",
                     "--present", "8x2048")  # fmt: skip
    assert [cell["max_num_batched_tokens"] for cell in study["cells"]] == [2048]
    assert study["infeasible"].keys() == {"8x131072"}


def test_another_gpu_is_scaled_and_says_so(run):
    study = simulate(run, *SMALL[:3], "--model", "qwen2.5-7b", "--gpu", "a100-80gb", *GRID)
    assert study["calibration"].startswith("not measured on NVIDIA A100")
