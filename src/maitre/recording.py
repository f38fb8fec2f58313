"""Recordings: what a real vLLM did, step by step, in one JSON file with an .npz of step columns beside it."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from maitre.errors import InputError
from maitre.files import read_bytes, read_json
from maitre.records import Cell, Workload

REQUIRED_COLUMNS = (
    "num_decodes", "decode_context_tokens", "num_prefills", "prefill_tokens", "prefill_attention_pairs",
    "num_preemptions", "output_end_s",
)  # fmt: skip
"""Columns without which a recording proves nothing."""

FIGURE_COLUMNS = (*REQUIRED_COLUMNS, "schedule_start_s", "num_running", "num_waiting", "num_free_blocks")
"""Columns from which, with `REQUEST_COLUMNS`, the figures of a run follow without a replay."""

REQUEST_COLUMNS = (
    "arrival_s", "first_scheduled_s", "first_token_s", "last_token_s", "num_preemptions", "num_cached_tokens",
)  # fmt: skip
"""What a server's scheduler records of each request; times in seconds since the run's first schedule."""

_BROKEN_NPZ = (
    OSError, EOFError, SyntaxError, TypeError, MemoryError, NotImplementedError, RuntimeError,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What zipfile and numpy raise for a broken file besides ValueError: for its directory, an unknown version, a password,
a header that is no Python literal, a shape larger than the memory."""

Count = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class RecordedServer(_Section):
    """How the server was started."""

    max_num_seqs: Count
    max_num_batched_tokens: Count
    max_model_len: Count
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: Count = 1
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    enable_prefix_caching: bool = False
    async_scheduling: bool = True
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"


class RecordedRequests(_Section):
    """The requests in order of arrival; one entry each."""

    arrival_s: list[float]
    """When they were sent, seconds since the first; all 0 for a burst."""
    prompt_tokens: list[int]
    output_tokens: list[int]
    prefix_hashes: list[list[int]] | None = None
    prefix_block_tokens: int | None = None


class RecordedCell(_Section):
    """One run at one setting of the dials."""

    max_num_seqs: Count
    max_num_batched_tokens: Count
    repeat: int = 0
    steps: str
    """Name of its array in the .npz: a row a step, a column for each of `step_columns`."""
    requests: str | None = None
    """Name of its array in the .npz: a row a request, a column for each of `request_columns`. Given where requests came
    over HTTP: those that are sent at once do not arrive at once, and in each run at other times."""
    num_gpu_blocks: Annotated[int, Field(ge=2)] | None = None
    """The pool of this run; None if it is the recording's."""
    num_steps: Count
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
    num_gpu_blocks: int = Field(ge=2)
    block_size: Count = 16
    workload: str
    requests: RecordedRequests
    step_columns: list[str]
    request_columns: list[str] = Field(default_factory=list)
    cells: list[RecordedCell] = Field(min_length=1)

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


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord:
    """What each step of a run computed, and when its output was there."""

    columns: dict[str, NDArray[np.float64]]
    """One array of shape (steps,) for each of a recording's `step_columns`."""

    @property
    def step_end_s(self) -> NDArray[np.float64]:
        """When the output of each step was processed, shape (steps,), seconds since the first schedule."""
        return self.columns["output_end_s"]

    @property
    def steps_s(self) -> NDArray[np.float64]:
        """Intervals between outputs, shape (steps,). With async scheduling only sums over a dozen steps are right."""
        return np.diff(self.step_end_s, prepend=0.0)

    @property
    def num_steps(self) -> int:
        """How many steps."""
        return len(self.step_end_s)

    def first(self, num_steps: int) -> StepRecord:
        """The record as it was after so many steps."""
        return StepRecord({name: values[:num_steps] for name, values in self.columns.items()})


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord(StepRecord):
    """The steps of a run that came to its end, and what became of its requests."""

    requests: dict[str, NDArray[np.float64]]
    """One array of shape (requests,), in the order of the workload, for each of `REQUEST_COLUMNS`."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRun(StepRecord):
    """The steps of one recorded cell."""

    recorded: RecordedCell
    requests: dict[str, NDArray[np.float64]] | None = None
    """As in `RunRecord`, where each run has times of its own."""


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
        raise _wrong_field(path, error) from None
    try:
        recorded_workload(recording)
    except ValidationError as error:
        raise _wrong_field(path, error, "requests") from None
    missing = [name for name in REQUIRED_COLUMNS if name not in recording.step_columns]
    if missing:
        raise InputError(f"{path}: step_columns: no {', '.join(missing)}", "record the server again")
    return recording, _load_runs(path.with_suffix(".npz"), recording)


def recorded_workload(recording: Recording) -> Workload:
    """The requests of a recording, with arrivals if they were not sent all at once."""
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


def _wrong_field(path: Path, error: ValidationError, *parents: str) -> InputError:
    first = error.errors()[0]
    field = ".".join(map(str, (*parents, *first["loc"]))) or "the whole file"
    return InputError(
        f"{path}: not a recording of maitre: {field}: {first['msg']}", "name a file of schema maitre-recording-1"
    )


def _load_runs(path: Path, recording: Recording) -> list[RecordedRun]:
    names = {name for cell in recording.cells for name in (cell.steps, cell.requests) if name is not None}
    try:
        arrays = read_arrays(path, names)
        return [_load_run(arrays, cell, recording) for cell in recording.cells]
    except KeyError as error:
        raise InputError(f"{path}: {error.args[0]}", "keep .json and .npz together") from None
    except ValueError as error:
        raise InputError(f"{path}: not the step columns of the recording ({error})", "copy both files again") from None


def read_arrays(path: Path, names: Iterable[str] | None = None) -> dict[str, NDArray[np.float64]]:
    """The arrays of an .npz file, all or some of them.

    Raises:
        KeyError: one of the names is not in it.
        ValueError: it is no .npz file, is cut off, or holds something else than numbers.
        InputError, SystemFailure: as `read_bytes`.
    """
    with BytesIO(read_bytes(path)) as content:
        try:
            file = np.lib.npyio.NpzFile(content, allow_pickle=False)
            arrays: dict[str, Any] = {name: file[name] for name in (file.files if names is None else names)}
        except _BROKEN_NPZ as error:
            raise ValueError(str(error)) from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":  # another file gives its bytes
            raise ValueError(f"{name} is no array of numbers")
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def _load_run(arrays: Mapping[str, NDArray[np.float64]], cell: RecordedCell, recording: Recording) -> RecordedRun:
    columns = _columns(arrays, cell.steps, cell.num_steps, "steps", recording.step_columns)
    ends = columns["output_end_s"]
    if ends[0] < 0 or ends[-1] <= 0 or (np.diff(ends) < 0).any():
        raise ValueError(f"{cell.steps} has times that go back")
    if cell.requests is None:
        return RecordedRun(columns, cell)
    needed = {"step_columns": FIGURE_COLUMNS, "request_columns": REQUEST_COLUMNS}
    for field, names in needed.items():
        if missing := [name for name in names if name not in getattr(recording, field)]:
            raise ValueError(f"{field} lacks {', '.join(missing)}, which runs over HTTP need")
    num_requests = len(recording.requests.prompt_tokens)
    requests = _columns(arrays, cell.requests, num_requests, "requests", recording.request_columns)
    return RecordedRun(columns, cell, requests)


def _columns(
    arrays: Mapping[str, NDArray[np.float64]], name: str, num_rows: int, rows: str, names: list[str]
) -> dict[str, NDArray[np.float64]]:
    array = arrays[name]
    if array.shape != (num_rows, len(names)):
        shape = " × ".join(map(str, array.shape))
        raise ValueError(f"{name} is {shape}, {num_rows} {rows} × {len(names)} columns were expected")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has values that are no numbers")
    return dict(zip(names, array.T, strict=True))
