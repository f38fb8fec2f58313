"""The live dials, seen from maitre: a directory shared with a vLLM server that runs the scheduler of `vllm/dials`.

dials = dial_directory(path)
dials.clear()
# start `vllm serve MODEL …` with dials.arguments(largest cell) behind it and dials.environment() around it
dials.turn(1, cell, num_gpu_blocks=None)
# send the requests, each with the header `X-Request-Id: dials.request_id(1, index)`
dials.wait_applied(1)
# wait for the answers
recorded = dials.read_run(1)
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

import maitre.vllm
from maitre.errors import InputError, SystemFailure, UsageError
from maitre.files import read_json
from maitre.records import Cell, Record

PLUGIN_FOLDER = Path(maitre.vllm.__file__).parent / "dials"
"""What must be on the server's PYTHONPATH: the folder of `maitre_dials.py`."""
POLL_S = 0.05

AnyRecord = TypeVar("AnyRecord", bound=Record)


class AppliedDials(Record):
    """The dials as they are set."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int


class StartedServer(AppliedDials):
    """How the server was started; no dial goes above these values."""

    block_size: int
    max_model_len: int
    enable_prefix_caching: bool
    async_scheduling: bool


class DialState(Record):
    """What the server's scheduler says of itself (`state.json`)."""

    protocol: Literal[1]
    pid: int
    vllm_version: str
    start: StartedServer
    run: int | None
    """The last control that it read; None before the first."""
    applied: AppliedDials
    refused: str | None
    """Why it did not do what that control asked; the dials are then as before, and nothing is recorded."""


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
    protocol: Literal[1]
    run: int
    applied: AppliedDials
    zero_unix_s: float
    step_columns: list[str] = Field(min_length=1)
    request_columns: list[str] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class DialDirectory:
    """The directory through which maitre and one server talk."""

    path: Path

    def clear(self) -> None:
        """Remove what an earlier server left; only before a server is started."""
        names = ("control.json", "state.json", "run-*.json", "run-*.steps", "run-*.requests", "*.draft")
        for file in [file for name in names for file in self.path.glob(name)]:
            file.unlink(missing_ok=True)

    def environment(self) -> dict[str, str]:
        """Variables that the server needs beside those of this process."""
        python_path = [str(PLUGIN_FOLDER), os.environ.get("PYTHONPATH", "")]
        return {"PYTHONPATH": os.pathsep.join(filter(None, python_path)), "MAITRE_DIALS_DIR": str(self.path)}

    def arguments(self, largest: Cell) -> list[str]:
        """Flags for the end of a `vllm serve` command, where they replace earlier ones: plug-in and largest cell."""
        limits = {
            "--scheduler-cls": "maitre_dials.DialScheduler",
            "--max-num-seqs": str(largest.max_num_seqs),
            "--max-num-batched-tokens": str(largest.max_num_batched_tokens),
        }
        return [word for flag in limits.items() for word in flag]

    def turn(self, run: int, cell: Cell, num_gpu_blocks: int | None = None) -> None:
        """Ask for a run: it begins with the next request that finds the server empty.

        Args:
            run: a number that no earlier run of this server has.
            cell: the dials, none above the server's start.
            num_gpu_blocks: size of the KV pool in blocks, the null block included; None for the whole pool.

        Raises:
            SystemFailure: the directory cannot be written.
        """
        draft = self.path / f"control.{os.getpid()}.draft"
        try:
            draft.write_text(json.dumps({"run": run, **cell.model_dump(), "num_gpu_blocks": num_gpu_blocks}))
            draft.replace(self.path / "control.json")
        except OSError as error:
            raise SystemFailure(f"{self.path}: cannot be written ({error.strerror})", "check the disk") from error

    def state(self) -> DialState | None:
        """What the scheduler last said; None if it has not started (with `arguments` and `environment`).

        Raises:
            InputError: it is another version of the plug-in.
        """
        path = self.path / "state.json"
        return _validated(DialState, path) if path.exists() else None

    def wait_applied(self, run: int, timeout_s: float = 10.0) -> DialState:
        """Wait until the dials of a run are set: when its first request arrives.

        Raises:
            UsageError: the server refuses them, and says why.
            SystemFailure: nothing happened for `timeout_s` seconds.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            state = self.state()
            if state is not None and state.run == run:
                break
            if time.monotonic() > deadline_s:
                raise SystemFailure(
                    f"{self.path}: run {run} was not begun within {timeout_s:g} s",
                    "the dials turn with the first request that finds the server empty: is other traffic on it?",
                )
            time.sleep(POLL_S)
        if state.refused is not None:
            raise UsageError(f"run {run} was refused: {state.refused}", "start the server at the largest cell of all")
        return state

    def request_id(self, run: int, index: int) -> str:
        """The `X-Request-Id` by which a request is found again in the run's request columns.

        If one completion request has several prompts, this names the first, and the others follow.
        """
        return f"maitre-{run}-{index}"

    def read_run(self, run: int) -> RecordedSteps:
        """What is recorded of a run so far. Whoever has an answer's last token finds that request and its steps here.

        Raises:
            InputError: the run was not recorded, or by another version of the plug-in.
        """
        path = self.path / f"run-{run}.json"
        about = _validated(_RunFile, path)
        requests = _rows(path.with_suffix(".requests"), about.request_columns)
        order = np.argsort(requests[about.request_columns[0]], kind="stable")
        return RecordedSteps(
            run,
            about.applied,
            about.zero_unix_s,
            _rows(path.with_suffix(".steps"), about.step_columns),
            {name: values[order] for name, values in requests.items()},
        )


def dial_directory(path: Path) -> DialDirectory:
    """The directory of a server, made if it is not there.

    Raises:
        SystemFailure: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemFailure(f"{path}: cannot be made ({error.strerror})", "name a directory that you own") from error
    return DialDirectory(path.resolve())


def _validated(record: type[AnyRecord], path: Path) -> AnyRecord:
    content: Any = read_json(path)
    try:
        return record.model_validate(content)
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"])) or "the whole file"
        raise InputError(
            f"{path}: not written by this version of maitre's scheduler: {field}: {error.errors()[0]['msg']}",
            "start the server with the plug-in of this maitre",
        ) from None


def _rows(path: Path, names: list[str]) -> dict[str, NDArray[np.float64]]:
    """The columns of a file of little-endian float64 rows; a last row that is not whole is left out."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SystemFailure(f"{path}: cannot be read ({error.strerror})", "was the run recorded to its end?") from error
    row_bytes = 8 * len(names)
    rows = np.frombuffer(content[: len(content) // row_bytes * row_bytes], dtype="<f8").reshape(-1, len(names))
    return dict(zip(names, rows.T.astype(np.float64), strict=True))
