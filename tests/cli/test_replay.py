"""`maitre replay`: the keys of its JSON, the table, and exit code 1 where the schedule is not reproduced."""

import json
import shutil
from pathlib import Path

import pytest

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "recordings"
SMALL = RECORDINGS / "qwen2.5-14b-lognormal-kv4521.json"

CELL_KEYS = {
    *("max_num_seqs", "max_num_batched_tokens", "repeat", "num_steps", "num_preemptions", "recorded_num_steps"),
    *("recorded_num_preemptions", "predicted_s", "recorded_s"),
}


def test_json_holds_every_cell_and_the_errors(run):
    code, out, err = run("replay", SMALL, "--calibrate-on", "64x1024,256x16384", "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert len(report["cells"]) == 9
    for cell in report["cells"]:
        assert cell.keys() >= CELL_KEYS
        assert cell["num_steps"] == cell["recorded_num_steps"]
        assert cell["num_preemptions"] == cell["recorded_num_preemptions"]
    off = [abs(c["predicted_s"] / c["recorded_s"] - 1) for c in report["cells"] if not c["calibrated_on"]]
    assert len(off) == 7
    assert report["mean_abs_error"] == pytest.approx(sum(off) / 7)
    assert report["max_abs_error"] == pytest.approx(max(off))
    assert report["mean_abs_error"] < 0.01


def test_people_get_a_line_a_cell_and_the_verdict(run):
    code, out, err = run("replay", SMALL)
    assert (code, err) == (0, "")
    assert "256 × 16,384" in out
    assert "every step of every cell is reproduced; time off by " in out
    assert "fitted" not in out
    fitted = run("replay", SMALL, "--calibrate-on", "64x1024,256x16384")[1]
    assert fitted.count(" fitted\n") == 2
    assert "step time fitted to the cells 64x1024, 256x16384 of qwen2.5-14b-lognormal-kv4521.json" in fitted


def test_a_schedule_that_is_not_reproduced_is_exit_code_1(run, tmp_path):
    content = json.loads(SMALL.read_text())
    (tmp_path / "r.json").write_text(json.dumps(content | {"num_gpu_blocks": 3000}))
    shutil.copy(SMALL.with_suffix(".npz"), tmp_path / "r.npz")
    code, out, err = run("replay", tmp_path / "r.json")
    assert (code, err) == (1, "")
    assert "not reproduced exactly" in out


def test_where_requests_arrived_over_time_the_schedule_may_differ(run):
    timed = min(RECORDINGS.glob("*-open-*.json"))
    code, out, _ = run("replay", timed)
    assert code == 0
    assert "the schedule depends on the step times" in out
