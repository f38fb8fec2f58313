"""The recorded engine answers with what the real server did, and with nothing else."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from maitre.errors import InputError, UsageError
from maitre.records import Cell
from maitre.trial import RecordedEngine
from maitre.trial.recorded import nearest_default, recorded_server

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
GRIDS = ("qwen2.5-14b-fixed-512-256", "qwen2.5-14b-fixed-512-256-kv4521", "qwen2.5-14b-lognormal-kv4521")
SMALL = RECORDINGS / "qwen2.5-14b-lognormal-kv4521.json"


@pytest.mark.parametrize("name", GRIDS)
def test_throughput_is_the_recordings_own(name):
    path = RECORDINGS / f"{name}.json"
    engine = RecordedEngine(path)
    told = {(c["max_num_seqs"], c["max_num_batched_tokens"]): c for c in json.loads(path.read_text())["cells"]}
    assert len(engine.cells) == len(told)
    for cell in engine.cells:
        trial, recorded = engine.measure(cell).trial, told[cell.max_num_seqs, cell.max_num_batched_tokens]
        assert trial.total_tokens_per_s == pytest.approx(recorded["total_tokens_per_s"], rel=1e-3)
        assert trial.output_tokens_per_s == pytest.approx(recorded["output_tokens_per_s"], rel=1e-3)
        assert (trial.num_steps, trial.num_preemptions) == (recorded["num_steps"], recorded["num_preemptions"])


def test_a_cell_that_was_not_recorded_is_refused_with_those_that_were():
    with pytest.raises(UsageError, match="5x5000 was not recorded") as caught:
        RecordedEngine(SMALL).measure(Cell(max_num_seqs=5, max_num_batched_tokens=5000))
    assert "64x1024" in caught.value.hint


def test_a_recording_with_other_flags_than_it_says_is_refused(tmp_path):
    content = json.loads(SMALL.read_text())
    (tmp_path / "r.json").write_text(json.dumps(content | {"num_gpu_blocks": 3000}))
    shutil.copy(SMALL.with_suffix(".npz"), tmp_path / "r.npz")
    engine = RecordedEngine(tmp_path / "r.json")
    with pytest.raises(InputError, match="256x1024: the recorded schedule"):
        engine.measure(Cell(max_num_seqs=256, max_num_batched_tokens=1024))


def test_a_recording_with_arrivals_is_refused():
    timed = next(RECORDINGS.glob("*-open-*.json"))
    with pytest.raises(InputError, match="arrived over time"):
        RecordedEngine(timed)


def test_a_run_ends_when_its_watcher_has_seen_enough():
    engine = RecordedEngine(SMALL)
    whole, seen = engine.measure(engine.cells[0]), []

    def watch(steps):
        seen.append(steps.num_steps)
        return steps.num_steps >= 200

    short = engine.measure(engine.cells[0], watch)
    assert seen == [100, 200]
    assert short.trial is None
    assert short.steps.num_steps == 200
    assert np.array_equal(short.steps.step_end_s, whole.steps.step_end_s[:200])


def test_the_present_cell_is_the_recorded_one_nearest_to_the_default():
    engine = RecordedEngine(SMALL)
    assert str(nearest_default(engine.recording, engine.cells)) == "256x4096"  # the default is 1024x8192
    assert recorded_server(engine.recording).max_model_len == 8192
