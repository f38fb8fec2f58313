"""Recordings: what a real vLLM did, step by step, in one JSON file with an .npz of step columns beside it."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from maitre.errors import InputError
from maitre.files import read_bytes, read_json
from maitre.records import Cell, Workload


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class RecordedServer(_Section):
    """How the server was started."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = False
    async_scheduling: bool = True


class RecordedRequests(_Section):
    """The requests in order of arrival; one entry each."""

    arrival_s: list[float]
    prompt_tokens: list[int]
    output_tokens: list[int]
    prefix_hashes: list[list[int]] | None = None
    prefix_block_tokens: int | None = None


class RecordedCell(_Section):
    """One run at one setting of the dials."""

    max_num_seqs: int
    max_num_batched_tokens: int
    repeat: int = 0
    steps: str
    """Name of its array in the .npz: a row a step, a column for each of `step_columns`."""
    num_steps: int
    num_preemptions: int
    engine_s: float
    """First schedule to last output, in seconds."""

    @property
    def cell(self) -> Cell:
        """The two dials."""
        return Cell(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.max_num_batched_tokens)


class Recording(_Section):
    """A server, its requests, and the runs of several cells."""

    schema_version: Literal["maitre-recording-1"] = Field(alias="schema")
    gpu: str
    vllm_version: str
    attention_backend: str = "backend not recorded"
    model: str
    model_facts: dict[str, Any] = Field(default_factory=dict, alias="model_config")
    """The fields of the model's config.json that decide its speed."""
    server: RecordedServer
    num_gpu_blocks: int
    block_size: int = 16
    workload: str
    requests: RecordedRequests
    step_columns: list[str]
    cells: list[RecordedCell]

    @property
    def model_facts_as_config(self) -> dict[str, Any]:
        """`model_facts` in the words of a config.json."""
        facts = dict(self.model_facts)
        architecture, dtype = facts.pop("architecture", None), facts.pop("dtype", "bfloat16")
        return facts | {
            "architectures": [architecture],
            "torch_dtype": dtype,
            "max_position_embeddings": self.server.max_model_len,
        }


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The steps of one recorded cell."""

    recorded: RecordedCell
    columns: dict[str, NDArray[np.float64]]
    """One array of shape (steps,) for each of the recording's `step_columns`."""

    @property
    def step_end_s(self) -> NDArray[np.float64]:
        """When the output of each step was processed, shape (steps,), seconds since the first schedule."""
        return self.columns["output_end_s"]

    @property
    def steps_s(self) -> NDArray[np.float64]:
        """Intervals between outputs, shape (steps,). With async scheduling only sums over a dozen steps are right."""
        return np.diff(self.step_end_s, prepend=0.0)


def load_recording(path: Path) -> tuple[Recording, list[RecordedRun]]:
    """Read a recording and the steps of its cells.

    Args:
        path: the .json file; the .npz of the same name lies beside it.

    Raises:
        InputError: a file is missing or broken, or the two do not belong together.
    """
    content = read_json(path)
    try:
        recording = Recording.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path}: not a recording of maitre: {field}: {first['msg']}", "name a file of schema maitre-recording-1"
        ) from None
    return recording, _load_runs(path.with_suffix(".npz"), recording)


def recorded_workload(recording: Recording) -> Workload:
    """The requests of a recording."""
    requests = recording.requests
    arrives_later = any(requests.arrival_s)
    return Workload(
        name=recording.workload,
        source=f"recorded on {recording.gpu} with vLLM {recording.vllm_version}",
        prompt_tokens=requests.prompt_tokens,
        output_tokens=requests.output_tokens,
        arrival_s=requests.arrival_s if arrives_later else None,
        prefix_hashes=requests.prefix_hashes,
        prefix_block_tokens=requests.prefix_block_tokens,
    )


def _load_runs(path: Path, recording: Recording) -> list[RecordedRun]:
    read_bytes(path)
    runs = []
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for cell in recording.cells:
                steps = arrays[cell.steps].astype(np.float64)
                columns = dict(zip(recording.step_columns, steps.T, strict=True))
                runs.append(RecordedRun(cell, columns))
    except KeyError as error:
        raise InputError(f"{path}: no array {error} for a recorded cell", "keep .json and .npz together") from None
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not the step columns of the recording ({error})", "copy the file again") from None
    return runs
