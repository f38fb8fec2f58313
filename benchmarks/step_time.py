"""How well the step time predicts recorded cells, and the calibrations that ship with the package.

    python benchmarks/step_time.py RECORDING.json…          errors: prior, one cell, two opposite cells, all pairs
    python benchmarks/step_time.py --ship RECORDING.json…   fit all cells of the recordings into one calibration

Errors are of a cell's whole time, predicted against recorded, over the cells that were not fitted.
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import numpy as np

from maitre.calibration import Calibration, fit_step_time, roofline_prior
from maitre.calibration.fit import CELL_SD
from maitre.gpus import find_gpu
from maitre.kv_budget import kv_bytes_per_token
from maitre.models import load_model
from maitre.recording import RecordedRun, Recording, load_recording
from maitre.records import ServerConfig
from maitre.trial.replay_check import predict_s, recorded_prior

SHIPPED = Path(__file__).parent.parent / "src/maitre/data/calibrations"


def errors(calibration: Calibration, runs: list[RecordedRun], left_out: set[str]) -> tuple[float, float]:
    """Mean and largest relative error in percent over the runs whose steps are not left out."""
    off = [
        abs(predict_s(calibration, run) / run.step_end_s[-1] - 1) * 100
        for run in runs
        if run.recorded.steps not in left_out
    ]
    return float(np.mean(off)), float(np.max(off))


def opposite_pairs(runs: list[RecordedRun]) -> list[tuple[RecordedRun, RecordedRun]]:
    """The two diagonals of the grid: least slots with least tokens against most with most, and across."""
    by_seqs = sorted({r.recorded.max_num_seqs for r in runs})
    by_tokens = sorted({r.recorded.max_num_batched_tokens for r in runs})
    at = {(r.recorded.max_num_seqs, r.recorded.max_num_batched_tokens): r for r in runs}
    corners = [
        ((by_seqs[0], by_tokens[0]), (by_seqs[-1], by_tokens[-1])),
        ((by_seqs[-1], by_tokens[0]), (by_seqs[0], by_tokens[-1])),
    ]
    return [(at[one], at[other]) for one, other in corners if one in at and other in at]


def report(path: Path) -> None:
    """Print the errors on one recording."""
    recording, runs = load_recording(path)
    prior = recorded_prior(recording)
    print(f"\n{path.stem}: {len(runs)} cells, mean / worst error of a cell's time in %")
    print(f"  nothing measured        {errors(prior, runs, set())[0]:6.2f} /{errors(prior, runs, set())[1]:6.2f}")
    if len(runs) < 2:
        return
    ones = [errors(fit_step_time([run], prior, ""), runs, {run.recorded.steps}) for run in runs]
    print(f"  one cell, median        {np.median([m for m, _ in ones]):6.2f} /{np.median([w for _, w in ones]):6.2f}")
    if len(runs) < 4:
        return
    for pair in opposite_pairs(runs):
        names = " + ".join(str(run.recorded.cell) for run in pair)
        mean, worst = errors(fit_step_time(pair, prior, ""), runs, {run.recorded.steps for run in pair})
        print(f"  {names:<23} {mean:6.2f} /{worst:6.2f}")
    pairs = [
        errors(fit_step_time(pair, prior, ""), runs, {run.recorded.steps for run in pair})
        for pair in combinations(runs, 2)
        if pair[0].recorded.max_num_seqs != pair[1].recorded.max_num_seqs
        and pair[0].recorded.max_num_batched_tokens != pair[1].recorded.max_num_batched_tokens
    ]
    means, worsts = np.array(pairs).T
    print(f"  {len(pairs)} pairs, median / p90  {np.median(means):6.2f} ({np.quantile(means, 0.9):.2f}) /", end="")
    print(f"{np.median(worsts):6.2f} ({np.quantile(worsts, 0.9):.2f})")


def ship(paths: list[Path], model_name: str, gpu_name: str) -> None:
    """Fit every cell of the recordings, and store the calibration."""
    loaded = [load_recording(path) for path in paths]
    runs = [run for _, recorded in loaded for run in recorded]
    recording: Recording = loaded[0][0]
    prior = recorded_prior(recording)
    source = f"{len(runs)} recorded cells, vLLM {recording.vllm_version}, {recording.attention_backend}"
    fitted = fit_step_time(runs, prior, source)
    model, gpu = load_model(model_name), find_gpu(gpu_name)
    calibration = fitted.model_copy(update={"kind": "measured", "model": model.name, "gpu": gpu.name})
    SHIPPED.mkdir(exist_ok=True)
    target = SHIPPED / f"{gpu_name}-{model_name}.json"
    target.write_text(calibration.model_dump_json(indent=1) + "\n", "utf-8")
    print(f"{target.name}: mean / worst error over its own cells {errors(fitted, runs, set())}")
    server = ServerConfig(model=model.name, max_model_len=8192, max_num_seqs=1, max_num_batched_tokens=1)
    roofline = roofline_prior(model, gpu, server, kv_bytes_per_token(model, "auto", 1, "auto"))
    print("measured / prior", np.round(fitted.step_time.coefficients / roofline.step_time.coefficients, 3))
    print("coefficients", fitted.step_time.coefficients, "relative sd", np.round(fitted.relative_sd, 3), CELL_SD)


def main() -> None:
    """Parse two shapes of command line."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--ship"]:
        ship([Path(a) for a in arguments[3:]], arguments[1], arguments[2])
    else:
        for argument in arguments:
            report(Path(argument))


if __name__ == "__main__":
    main()
