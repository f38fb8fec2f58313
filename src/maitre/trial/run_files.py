"""What a server's scheduler writes of a run: `run-N.json`, and rows of steps and of requests that grow beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from maitre.errors import InputError, SystemFailure
from maitre.files import read_json
from maitre.recording import StepRecord
from maitre.records import Record

AnyRecord = TypeVar("AnyRecord", bound=Record)


class AppliedDials(Record):
    """The dials as they are set."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """What the server did in one run. Times in seconds since the run's first schedule()."""

    run: int
    applied: AppliedDials
    zero_unix_s: float
    """Wall-clock time of the first schedule(), seconds since 1970."""
    columns: dict[str, NDArray[np.float64]]
    """One array of shape (steps,) for each of a recording's step columns."""
    request_columns: dict[str, NDArray[np.float64]]
    """One array of shape (ended requests,), by request_index; NaN: not maitre's request, or it did not come so far."""


class _RunFile(Record):
    protocol: Literal[2]
    run: int
    applied: AppliedDials
    zero_unix_s: float
    step_columns: list[str] = Field(min_length=1)
    request_columns: list[str] = Field(min_length=1)


class StepReader:
    """The steps of a run while it goes on: each look reads only what is new."""

    def __init__(self, path: Path) -> None:
        """Prepare.

        Args:
            path: the run's `run-N.json`, which need not be there yet.
        """
        self._path = path
        self._names: list[str] = []
        self._rows = np.zeros((0, 0))
        self._num_bytes = 0

    def read(self) -> StepRecord | None:
        """The steps so far, whole rows only; None before the first is on the disk.

        Raises:
            InputError: another version of the plug-in writes.
            SystemFailure: the disk refuses.
        """
        if not self._names:
            if not self._path.exists():
                return None
            self._names = read_record(_RunFile, self._path).step_columns
            self._rows = np.zeros((0, len(self._names)))
        rows = _new_rows(self._path.with_suffix(".steps"), len(self._names), self._num_bytes)
        self._num_bytes += rows.nbytes
        self._rows = np.concatenate([self._rows, rows])
        return StepRecord(_columns(self._rows, self._names)) if len(self._rows) else None


def read_run(path: Path) -> RecordedSteps:
    """What is recorded of a run so far. Whoever has an answer's last token finds that request and its steps here.

    Args:
        path: the run's `run-N.json`.

    Raises:
        InputError: the run was not recorded, or by another version of the plug-in.
    """
    about = read_record(_RunFile, path)
    steps = _new_rows(path.with_suffix(".steps"), len(about.step_columns))
    requests = _new_rows(path.with_suffix(".requests"), len(about.request_columns))
    requests = requests[np.argsort(requests[:, 0], kind="stable")]
    return RecordedSteps(
        about.run,
        about.applied,
        about.zero_unix_s,
        _columns(steps, about.step_columns),
        _columns(requests, about.request_columns),
    )


def read_record(record: type[AnyRecord], path: Path) -> AnyRecord:
    """A JSON file of the plug-in.

    Raises:
        InputError: it is missing, or of another version.
    """
    content: Any = read_json(path)
    try:
        return record.model_validate(content)
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"])) or "the whole file"
        raise InputError(
            f"{path}: not written by this version of maitre's scheduler: {field}: {error.errors()[0]['msg']}",
            "start the server with the plug-in of this maitre",
        ) from None


def _new_rows(path: Path, width: int, start: int = 0) -> NDArray[np.float64]:
    """The whole rows of little-endian float64 behind the first `start` bytes, shape (rows, width)."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            content = file.read()
    except OSError as error:
        raise SystemFailure(f"{path}: cannot be read ({error.strerror})", "was the run recorded to its end?") from error
    row_bytes = 8 * width
    whole = content[: len(content) // row_bytes * row_bytes]
    return np.frombuffer(whole, dtype="<f8").reshape(-1, width).astype(np.float64)


def _columns(rows: NDArray[np.float64], names: list[str]) -> dict[str, NDArray[np.float64]]:
    return dict(zip(names, np.ascontiguousarray(rows.T), strict=True))
