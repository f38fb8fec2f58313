"""Every recorded run on a real GPU is replayed without one difference."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from maitre.recording import load_recording, recorded_workload
from maitre.simulator.replay import replay_at_once
from maitre.trial.recorded import recorded_rules, replays_exactly

RECORDINGS = sorted((Path(__file__).parents[1] / "data" / "recordings").glob("*.json"))
STEP_COLUMNS = {
    "num_decodes",
    "decode_context_tokens",
    "num_prefills",
    "prefill_tokens",
    "prefill_attention_pairs",
    "num_preemptions",
    "num_running",
    "num_waiting",
    "num_free_blocks",
}

load = cache(load_recording)


def runs():
    """The cells of the recordings in which all requests were there from the start."""
    for path in RECORDINGS:
        recording, recorded = load(path)
        if any(recording.requests.arrival_s):
            continue  # its schedule depends on how long the steps took
        for run in recorded:
            yield pytest.param(recording, run, id=f"{path.stem}-{run.recorded.steps}")


@pytest.mark.parametrize(("recording", "run"), list(runs()))
def test_a_recorded_run_is_replayed_step_by_step(recording, run):
    replay = replay_at_once(recorded_workload(recording), recorded_rules(recording, run.recorded.cell))

    assert replay.num_steps == run.recorded.num_steps
    assert replay.num_preemptions.sum() == run.recorded.num_preemptions
    assert run.columns.keys() >= STEP_COLUMNS
    for name in STEP_COLUMNS:
        np.testing.assert_array_equal(replay.columns[name], run.columns[name], err_msg=name)
    assert replays_exactly(replay, run)


def test_a_step_more_or_another_number_is_noticed():
    recording, recorded = load(RECORDINGS[0])
    run, other = recorded[0], recorded[-1]
    workload = recorded_workload(recording)
    assert not replays_exactly(replay_at_once(workload, recorded_rules(recording, other.recorded.cell)), run)
    replay = replay_at_once(workload, recorded_rules(recording, run.recorded.cell))
    replay.columns["num_waiting"][-1] += 1
    assert not replays_exactly(replay, run)
