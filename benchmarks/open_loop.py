"""Predictions for runs that the calibration has not seen, against what the server did.

    python benchmarks/open_loop.py

1. The shipped calibration (Qwen2.5-14B on an H200, at most 256 decodes in a step) on a recording with 512.
2. Latencies of an open loop at 60 % of capacity (Qwen2.5-7B), simulated with a step time fitted to two cells of
   another recording of that model.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from maitre.calibration import fit_step_time, shipped_calibrations
from maitre.recording import load_recording, recorded_workload
from maitre.simulator import replay_arrivals
from maitre.trial.latencies import weighted_percentiles
from maitre.trial.recorded import recorded_rules
from maitre.trial.replay_check import recorded_prior

RECORDINGS = Path(__file__).parent.parent / "tests/data/recordings"


def unseen_slots() -> None:
    """More decodes than the calibration has seen."""
    recording, runs = load_recording(RECORDINGS / "qwen2.5-14b-lognormal-512-slots.json")
    sizes = recorded_prior(recording).step_time.graph_sizes
    step_time = shipped_calibrations()[0].step_time.model_copy(update={"graph_sizes": sizes})
    for run in runs:
        off = step_time.steps_s(run.columns).sum() / run.step_end_s[-1] - 1
        print(f"shipped calibration, {run.recorded.cell}: {100 * off:+.2f} % off")


def open_loop() -> None:
    """Latencies of requests that arrive over time."""
    measured, fitted_on = load_recording(RECORDINGS / "qwen2.5-7b-lognormal.json")
    step_time = fit_step_time([fitted_on[0], fitted_on[-1]], recorded_prior(measured), "").step_time
    path = RECORDINGS / "qwen2.5-7b-lognormal-open-60.json"
    recording, runs = load_recording(path)
    workload = recorded_workload(recording)
    assert workload.arrival_s is not None
    for run in runs:
        with np.load(path.with_suffix(".npz")) as arrays:
            arrival, _, first, last = arrays[f"{run.recorded.steps}_requests"][:, :4].astype(float).T
        replay = replay_arrivals(workload, recorded_rules(recording, run.recorded.cell), step_time)
        ends = replay.step_end_s
        assert ends is not None
        one_each = np.ones(workload.num_requests)
        pairs = {
            "TTFT": ((first - arrival, one_each), (ends[replay.first_token_step] - workload.arrival_s, one_each)),
            "E2E": ((last - arrival, one_each), (ends[replay.last_token_step] - workload.arrival_s, one_each)),
            "ITL": (
                (run.steps_s, run.columns["num_decodes"]),
                (np.diff(ends, prepend=0.0), replay.columns["num_steady_decodes"]),
            ),
        }
        for name, (recorded, simulated) in pairs.items():
            real, model = weighted_percentiles(*recorded), weighted_percentiles(*simulated)
            assert real is not None
            assert model is not None
            line = ", ".join(
                f"{q} {1e3 * getattr(real, q):.1f} ms {100 * (getattr(model, q) / getattr(real, q) - 1):+.0f} %"
                for q in ("p50", "p95", "p99")
            )
            print(f"open loop, {run.recorded.cell} {name}: {line}")


if __name__ == "__main__":
    unseen_slots()
    open_loop()
