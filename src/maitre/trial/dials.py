"""The live dials, seen from maitre: a directory shared with a vLLM server that runs the scheduler of `vllm/dials`.

dials = fresh_dials(folder)
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
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

import maitre.vllm
from maitre.errors import SystemFailure, UsageError
from maitre.records import Cell, Record
from maitre.trial.run_files import AppliedDials, RecordedSteps, StepReader, read_record, read_run

PLUGIN_FOLDER = Path(maitre.vllm.__file__).parent / "dials"
"""What must be on the server's PYTHONPATH: the folder of `maitre_dials.py`."""
POLL_S = 0.05


class ServerStart(AppliedDials):
    """How the server was started; no dial goes above these values."""

    block_size: int
    max_model_len: int
    enable_prefix_caching: bool
    async_scheduling: bool
    dtype: str
    kv_cache_dtype: str
    tensor_parallel_size: int
    gpu_memory_utilization: float
    long_prefill_token_threshold: int
    watermark: float
    scheduling_policy: Literal["fcfs", "priority"]


class DialState(Record):
    """What the server's scheduler says of itself (`state.json`)."""

    protocol: Literal[2]
    pid: int
    vllm_version: str
    gpu: str
    """As the driver names it; "cpu" without one."""
    model_facts: dict[str, Any] = Field(alias="model_config")
    """The model's config.json; empty if the server cannot tell it."""
    start: ServerStart
    run: int | None
    """The last control that it read; None before the first."""
    applied: AppliedDials
    refused: str | None
    """Why it did not do what that control asked; the dials are then as before, and nothing is recorded."""


@dataclass(frozen=True, slots=True)
class DialDirectory:
    """The directory through which maitre and one server talk, of one start."""

    path: Path

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
        return read_record(DialState, path) if path.exists() else None

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
        return read_run(self._run_file(run))

    def follow_run(self, run: int) -> StepReader:
        """The steps of a run while it goes on."""
        return StepReader(self._run_file(run))

    def _run_file(self, run: int) -> Path:
        return self.path / f"run-{run}.json"


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


def fresh_dials(folder: Path) -> tuple[int, DialDirectory]:
    """A directory of its own for the next start of a server: `start-1`, `start-2` …; none is ever used again.

    Returns:
        The number of the start, and the directory.

    Raises:
        SystemFailure: it cannot be made.
    """
    used = [int(match[1]) for path in folder.glob("start-*") if (match := re.fullmatch(r"start-(\d+)", path.name))]
    number = 1 + max(used, default=0)
    return number, dial_directory(folder / f"start-{number}")
