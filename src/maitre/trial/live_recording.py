"""What was measured on a real server as a recording, which `maitre replay` and `--engine recorded:FILE` read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maitre.errors import SystemFailure, UsageError
from maitre.gpus import find_gpu
from maitre.recording import REQUEST_COLUMNS, RecordedCell, Recording, RunRecord, StepRecord
from maitre.records import Trial, Workload
from maitre.trial.facts import ServerFacts

Arrays = dict[str, NDArray[np.float64]]
"""What lies in the .npz: a row a step, or a row a request."""


def record_trials(
    facts: ServerFacts,
    workload: Workload,
    trials: Sequence[tuple[Trial, StepRecord | None]],
    *,
    model: str,
    gpu: str | None,
    open_loop: bool,
) -> tuple[Recording, Arrays] | None:
    """The recording of the runs that came to their end; None if there is none.

    Args:
        facts: what the server says of itself.
        workload: the requests of every run.
        trials: with their steps; those without, or cut short, are left out.
        model: as the user's command names it.
        gpu: as the user names it; counts where the driver's name says nothing.
        open_loop: the requests were sent at the workload's own times.
    """
    runs = [(trial, record) for trial, record in trials if isinstance(record, RunRecord) and not trial.cut_short]
    if not runs:
        return None
    repeats: Counter[str] = Counter()
    cells, arrays = [], Arrays()
    for trial, record in runs:
        name = f"{trial.max_num_seqs}_{trial.max_num_batched_tokens}_{repeats[str(trial.cell)]}"
        arrays[name] = np.column_stack(list(record.columns.values()))
        arrays[f"{name}_requests"] = np.column_stack([record.requests[column] for column in REQUEST_COLUMNS])
        cells.append(_recorded_cell(trial, record, name, repeats[str(trial.cell)]))
        repeats[str(trial.cell)] += 1
    content = _about(facts, workload, model=model, gpu=_gpu_name(facts.gpu, gpu), open_loop=open_loop)
    content |= {"step_columns": list(runs[0][1].columns), "request_columns": list(REQUEST_COLUMNS), "cells": cells}
    return Recording.model_validate(content), arrays


def write_recording(path: Path, recording: Recording, arrays: Arrays) -> None:
    """Write the .json and, first, the .npz beside it; each in one piece or not at all.

    Raises:
        SystemFailure: the disk refuses.
    """
    try:
        draft = path.with_suffix(".part")
        with draft.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        draft.replace(path.with_suffix(".npz"))
        draft.write_text(recording.model_dump_json(by_alias=True, exclude_none=True), "utf-8")
        draft.replace(path)
    except OSError as error:
        what = f"{path}: cannot be written ({error.strerror})"
        raise SystemFailure(what, "check permissions and the disk") from error


def _recorded_cell(trial: Trial, record: RunRecord, name: str, repeat: int) -> RecordedCell:
    return RecordedCell(
        **trial.cell.model_dump(),
        repeat=repeat,
        steps=name,
        requests=f"{name}_requests",
        num_gpu_blocks=trial.num_gpu_blocks,
        num_steps=record.num_steps,
        num_preemptions=int(record.columns["num_preemptions"].sum()),
        engine_s=trial.duration_s,
    )


def _about(facts: ServerFacts, workload: Workload, *, model: str, gpu: str, open_loop: bool) -> dict[str, Any]:
    """Everything but the runs."""
    arrival_s = workload.arrival_s if open_loop and workload.arrival_s is not None else np.zeros(workload.num_requests)
    return {
        "schema": "maitre-recording-1",
        "gpu": gpu,
        "vllm_version": facts.vllm_version,
        "model": model,
        "model_config": _model_facts(facts),
        "server": facts.start.model_dump(),
        "num_gpu_blocks": facts.start.num_gpu_blocks,
        "block_size": facts.start.block_size,
        "workload": workload.name,
        "requests": {
            "arrival_s": arrival_s.tolist(),
            "prompt_tokens": workload.prompt_tokens.tolist(),
            "output_tokens": workload.output_tokens.tolist(),
            "prefix_hashes": workload.prefix_hashes,
            "prefix_block_tokens": workload.prefix_block_tokens,
        },
    }


def _model_facts(facts: ServerFacts) -> dict[str, Any]:
    """The model's config.json, with architecture and dtype under a recording's names."""
    content = dict(facts.model_facts)
    architectures = content.pop("architectures", None)
    content.pop("torch_dtype", None)
    return content | {"architecture": (architectures or [None])[0], "dtype": facts.start.dtype}


def _gpu_name(told: str, named: str | None) -> str:
    """The driver's name of the GPU, if it is one that maitre knows; else the user's."""
    with suppress(UsageError):
        find_gpu(told)
        return told
    return named or told
