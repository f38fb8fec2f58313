"""The simulator against recordings: every step the same, and the time predicted."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from maitre.errors import UsageError
from maitre.recording import REQUEST_COLUMNS
from maitre.records import Cell
from maitre.trial.replay_check import replay_recording

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
SMALL = RECORDINGS / "qwen2.5-14b-lognormal-kv4521.json"
CORNERS = [Cell(max_num_seqs=64, max_num_batched_tokens=1024), Cell(max_num_seqs=256, max_num_batched_tokens=16384)]


def test_every_column_of_every_step_is_reproduced():
    report = replay_recording(SMALL, [])
    assert len(report.cells) == 9
    for cell in report.cells:
        assert cell.num_columns_off == 0
        assert (cell.num_steps, cell.num_preemptions) == (cell.recorded_num_steps, cell.recorded_num_preemptions)
    assert "not measured on NVIDIA H200" in report.calibration


def test_errors_are_over_the_cells_that_were_not_calibrated_on():
    report = replay_recording(SMALL, CORNERS)
    assert sum(cell.calibrated_on for cell in report.cells) == 2
    off = [abs(cell.predicted_s / cell.recorded_s - 1) for cell in report.cells if not cell.calibrated_on]
    assert report.mean_abs_error == pytest.approx(sum(off) / 7)
    assert report.max_abs_error == pytest.approx(max(off))
    assert "64x1024, 256x16384 of qwen2.5-14b-lognormal-kv4521.json" in report.calibration


def test_two_measured_cells_predict_better_than_none():
    assert replay_recording(SMALL, CORNERS).mean_abs_error < replay_recording(SMALL, []).mean_abs_error / 2


def test_a_cell_to_calibrate_on_must_have_been_recorded():
    with pytest.raises(UsageError, match="5x5000 is not in"):
        replay_recording(SMALL, [Cell(max_num_seqs=5, max_num_batched_tokens=5000)])


def test_a_gpu_that_nobody_knows_is_predicted_once_it_was_seen(tmp_path):
    content = json.loads(SMALL.read_text())
    (tmp_path / "r.json").write_text(json.dumps(content | {"gpu": "NVIDIA H9000"}))
    shutil.copy(SMALL.with_suffix(".npz"), tmp_path / "r.npz")
    assert "NVIDIA H9000" in replay_recording(tmp_path / "r.json", []).calibration
    assert replay_recording(tmp_path / "r.json", CORNERS).max_abs_error < 0.1


def test_a_schedule_that_differs_is_counted(tmp_path):
    content = json.loads(SMALL.read_text())
    (tmp_path / "r.json").write_text(json.dumps(content | {"num_gpu_blocks": 3000}))
    shutil.copy(SMALL.with_suffix(".npz"), tmp_path / "r.npz")
    report = replay_recording(tmp_path / "r.json", [])
    assert any(cell.num_columns_off for cell in report.cells)


def test_a_burst_over_http_is_replayed_exactly_in_the_order_in_which_it_arrived(tmp_path):
    """An exact recording, told with its requests in another order and with times of arrival before the first step."""
    content, arrays = json.loads(SMALL.read_text()), dict(np.load(SMALL.with_suffix(".npz")))
    requests, num_requests = content["requests"], len(content["requests"]["arrival_s"])
    order = np.random.default_rng(0).permutation(num_requests)
    for cell in content["cells"]:
        cell["requests"] = f"{cell['steps']}_requests"
        arrays[cell["requests"]] = np.zeros((num_requests, len(REQUEST_COLUMNS)))
        arrays[cell["requests"]][:, REQUEST_COLUMNS.index("arrival_s")] = 1e-3 * (order - num_requests)
    told = {name: np.array(requests[name])[order].tolist() for name in requests}
    (tmp_path / "r.json").write_text(json.dumps(content | {"requests": told, "request_columns": REQUEST_COLUMNS}))
    np.savez(tmp_path / "r.npz", **arrays)
    report, original = replay_recording(tmp_path / "r.json", []), replay_recording(SMALL, [])
    assert report.cells == original.cells
    assert not report.open_loop


def test_with_arrivals_the_schedule_need_not_be_the_same_but_the_time_is_near():
    for path in RECORDINGS.glob("*-open-*.json"):
        report = replay_recording(path, [])
        assert report.open_loop
        assert report.max_abs_error < 0.1
