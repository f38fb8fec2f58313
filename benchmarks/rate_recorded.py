"""Highest rates against a real server: what it held at a recorded rate, asked back from the simulator.

    python benchmarks/rate_recorded.py

Recordings on an H200 have requests over time, at 60 and at 90 % of capacity. Each percentile of a latency that the
server had is taken as a target, and the highest rate that holds it is searched with a step time that was fitted to two
cells of another recording, with all requests at once. It should be the recorded rate.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from maitre.calibration import fit_step_time
from maitre.recording import REQUEST_COLUMNS, RunRecord, load_recording, recorded_workload
from maitre.slo import LatencyTarget, parse_latency_target
from maitre.trial.attainment import attains
from maitre.trial.measured import measured_run
from maitre.trial.paced import PacedSurface
from maitre.trial.rate_surface import RateSurface
from maitre.trial.recorded import recorded_server
from maitre.trial.replay_check import recorded_prior
from maitre.workload.arrivals import own_rate_rps

RECORDINGS = Path(__file__).parent.parent / "tests/data/recordings"
PERCENTILES = ("ttft_p90", "ttft_p95", "itl_p95", "itl_p99", "tpot_p95", "e2e_p95")


def ask_back(share: int) -> None:
    """Print a line for each cell and percentile."""
    fitted, burst = load_recording(RECORDINGS / "qwen2.5-7b-lognormal.json")
    step_time = fit_step_time([burst[0], burst[-1]], recorded_prior(fitted), "").step_time
    path = RECORDINGS / f"qwen2.5-7b-lognormal-open-{share}.json"
    recording, runs = load_recording(path)
    workload = recorded_workload(recording)
    paced = PacedSurface(workload, recorded_server(recording), step_time, lambda _: recording.num_gpu_blocks)
    for run in runs:
        cell = run.recorded.cell
        with np.load(path.with_suffix(".npz")) as arrays:
            rows = arrays[f"{run.recorded.steps}_requests"].astype(float)
        record = RunRecord(run.columns, dict(zip(REQUEST_COLUMNS, rows.T, strict=False)))
        measured = measured_run(record, workload, cell, recording.num_gpu_blocks, is_burst=False)
        for name in PERCENTILES:
            value_s = attains(measured, [parse_latency_target(f"{name}=1s")]).by_target[0].value_s
            assert value_s is not None
            metric, _, percent = name.partition("_p")
            target = LatencyTarget(metric=metric, percent=int(percent), limit_s=value_s)
            found = RateSurface(paced, [target]).find(cell, step_time.coefficients)
            off = found.crossing_rps / (own_rate_rps(workload) or 1.0) - 1
            print(f"{share} % of capacity, {cell}: {target} holds up to {found.crossing_rps:.2f}/s, {100 * off:+.1f} %")


if __name__ == "__main__":
    for percent in (60, 90):
        ask_back(percent)
