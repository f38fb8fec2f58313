"""The simulator against a recording: the schedule must be the same, the time is predicted and compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from maitre.calibration import Calibration, fit_step_time, roofline_prior
from maitre.calibration.served import unknown_prior
from maitre.errors import UnsupportedError, UsageError
from maitre.gpus import find_gpu
from maitre.kv_budget import kv_bytes_per_token
from maitre.models import parse_model_config
from maitre.recording import RecordedRun, Recording, load_recording, recorded_workload
from maitre.records import Cell, Record, ServerConfig, Workload
from maitre.simulator.replay import Replay, replay_arrivals, replay_at_once, replay_joining
from maitre.simulator.rules import SchedulerRules
from maitre.trial.recorded import num_columns_off, recorded_rules
from maitre.vllm.defaults import capture_sizes


class ReplayedCell(Record):
    """One recorded cell, replayed."""

    max_num_seqs: int
    max_num_batched_tokens: int
    repeat: int
    num_steps: int
    num_preemptions: int
    recorded_num_steps: int
    recorded_num_preemptions: int
    num_columns_off: int
    """Step columns (decodes, contexts, prompt tokens, queues, free blocks …) that differ in any step."""
    predicted_s: float
    recorded_s: float
    calibrated_on: bool


class ReplayReport(Record):
    """A recording, replayed."""

    recording: str
    gpu: str
    model: str
    calibration: str
    open_loop: bool
    """Requests were sent at their own times, so the schedule depends on how long steps take and cannot be exact."""
    cells: tuple[ReplayedCell, ...]
    mean_abs_error: float
    """Mean of |predicted / recorded − 1| over the cells that were not calibrated on."""
    max_abs_error: float


def replay_recording(path: Path, calibrate_on: Sequence[Cell]) -> ReplayReport:
    """Replay every cell of a recording and predict its time.

    Args:
        path: the recording's .json file.
        calibrate_on: cells to fit the step time to; without any, the roofline prior predicts.

    Raises:
        UsageError: a cell to calibrate on was not recorded.
    """
    recording, runs = load_recording(path)
    by_cell = {run.recorded.cell: run for run in runs}
    for cell in calibrate_on:
        if cell not in by_cell:
            raise UsageError(f"{cell} is not in {path}", f"recorded are {', '.join(map(str, by_cell))}")
    calibration = recorded_prior(recording)
    if calibrate_on:
        source = f"the cells {', '.join(map(str, calibrate_on))} of {path.name}"
        calibration = fit_step_time([by_cell[cell] for cell in calibrate_on], calibration, source)
    workload = recorded_workload(recording)
    cells = tuple(_replay_cell(recording, workload, run, calibration, set(calibrate_on)) for run in runs)
    errors = [abs(cell.predicted_s / cell.recorded_s - 1) for cell in cells if not cell.calibrated_on]
    return ReplayReport(
        recording=str(path),
        gpu=recording.gpu,
        model=recording.model,
        calibration=calibration.summary,
        open_loop=workload.arrival_s is not None,
        cells=cells,
        mean_abs_error=float(np.mean(errors)) if errors else 0.0,
        max_abs_error=float(np.max(errors)) if errors else 0.0,
    )


def recorded_prior(recording: Recording) -> Calibration:
    """The roofline prior of the recorded model and GPU; one that leaves all open if maitre does not know them.

    Raises:
        InputError: the recorded model is described wrongly.
    """
    server = ServerConfig(
        model=recording.model,
        vllm_version=recording.vllm_version,
        max_model_len=recording.server.max_model_len,
        max_num_seqs=recording.server.max_num_seqs,
        max_num_batched_tokens=recording.server.max_num_batched_tokens,
        dtype=recording.server.dtype,
        kv_cache_dtype=recording.server.kv_cache_dtype,
        tensor_parallel_size=recording.server.tensor_parallel_size,
    )
    try:
        prior = _roofline(recording, server)
    except (UsageError, UnsupportedError):
        prior = unknown_prior(server, recording.gpu)
    sizes = capture_sizes(recording.vllm_version, server.cell)
    return prior.model_copy(update={"step_time": prior.step_time.model_copy(update={"graph_sizes": sizes})})


def _roofline(recording: Recording, server: ServerConfig) -> Calibration:
    gpu = find_gpu(recording.gpu.split("(")[0].strip())
    facts = parse_model_config(recording.model_facts_as_config, f"model_config of the recording ({recording.model})")
    model = facts.model_copy(update={"name": recording.model})
    per_token = kv_bytes_per_token(model, server.kv_cache_dtype, server.tensor_parallel_size, server.dtype)
    return roofline_prior(model, gpu, server, per_token)


def predict_s(calibration: Calibration, run: RecordedRun) -> float:
    """Seconds that the recorded steps should take."""
    return float(calibration.step_time.steps_s(run.columns).sum())


def _replay(workload: Workload, rules: SchedulerRules, calibration: Calibration, run: RecordedRun) -> Replay:
    """All at once; or each request at the time at which the recorded server saw it.

    A burst that came over HTTP joins while the first steps run, and the record says before which of them each request
    did: that schedule is exact, too.
    """
    if run.requests is None:
        if workload.arrival_s is None:
            return replay_at_once(workload, rules)
        return replay_arrivals(workload, rules, calibration.step_time)
    arrival_s = run.requests["arrival_s"]
    order = np.argsort(arrival_s, kind="stable")
    hashes = workload.prefix_hashes
    as_it_came = workload.model_copy(
        update={
            "prompt_tokens": workload.prompt_tokens[order],
            "output_tokens": workload.output_tokens[order],
            "arrival_s": arrival_s[order] - arrival_s.min(),
            "prefix_hashes": None if hashes is None else tuple(hashes[index] for index in order),
        }
    )
    if workload.arrival_s is not None:
        return replay_arrivals(as_it_came, rules, calibration.step_time)
    return replay_joining(as_it_came, rules, np.searchsorted(run.columns["schedule_start_s"], arrival_s[order]))


def _replay_cell(
    recording: Recording, workload: Workload, run: RecordedRun, calibration: Calibration, calibrated_on: set[Cell]
) -> ReplayedCell:
    recorded = run.recorded
    rules = recorded_rules(recording, recorded.cell, recorded.num_gpu_blocks)
    replay = _replay(workload, rules, calibration, run)
    ends = replay.step_end_s
    predicted_s = replay.steps_s(calibration.step_time).sum() if ends is None else ends[-1]
    return ReplayedCell(
        max_num_seqs=recorded.max_num_seqs,
        max_num_batched_tokens=recorded.max_num_batched_tokens,
        repeat=recorded.repeat,
        num_steps=replay.num_steps,
        num_preemptions=int(replay.num_preemptions.sum()),
        recorded_num_steps=len(run.step_end_s),
        recorded_num_preemptions=int(run.columns["num_preemptions"].sum()),
        num_columns_off=num_columns_off(replay, run),
        predicted_s=float(predicted_s),
        recorded_s=float(run.step_end_s[-1]),
        calibrated_on=recorded.cell in calibrated_on,
    )
