"""A study on disk: a directory in which every finished trial is safe at once.

workload.json   the requests, once
asked.json      what was asked of a real server; the same question resumes the study
trials.jsonl    a line a finished trial, written as soon as it is known
steps/          what the server computed in the trial of each line, 0001.npz for the first
study.json      the whole study, rewritten at the end
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from maitre.errors import InputError, SystemFailure, UsageError
from maitre.files import read_json
from maitre.recording import RunRecord, StepRecord, read_arrays
from maitre.records import NOT_SURE_YET, Study, Trial, Workload

REQUEST_PREFIX = "request."
"""Before the names of request columns in a trial's steps file."""


class StudyDirectory:
    """Where one study is kept. As a context it removes what it made, if there is an error before the first trial."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: list[Path] = []
        """The directory and its parents, as far as they are new; the innermost first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        ours = {"workload.json", "asked.json"}
        if error and self._made and {path.name for path in self.path.iterdir()} <= ours:  # else there are logs to read
            for name in ours:
                (self.path / name).unlink(missing_ok=True)
            with suppress(OSError):  # somebody else has put something beside it
                for path in self._made:
                    path.rmdir()

    @classmethod
    def create(cls, path: Path, workload: Workload) -> StudyDirectory:
        """Make the directory and store the workload.

        Raises:
            UsageError: the directory exists and holds something.
            SystemFailure: the disk refuses.
        """
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise UsageError(f"{path} exists already", "name a new directory with --study")
            directory = cls(path)
            directory._made = [folder for folder in (path, *path.parents) if not folder.exists()]
            path.mkdir(parents=True, exist_ok=True)
            (path / "workload.json").write_text(workload.model_dump_json(), "utf-8")
        except OSError as error:
            raise _disk_failure(path, error) from error
        return directory

    @classmethod
    def resume(
        cls, path: Path, workload: Workload, asked: dict[str, Any]
    ) -> tuple[StudyDirectory, list[tuple[Trial, StepRecord | None]]]:
        """Open the directory of an unfinished study of the same question, or make a new one.

        Args:
            path: the directory.
            workload: the traffic.
            asked: everything that decides the trials, as JSON.

        Returns:
            The directory, and the trials that are finished already, with their steps where they were kept: a
            `RunRecord` for a run that came to its end.

        Raises:
            UsageError: the directory holds something else.
            InputError: a file in it is broken.
        """
        question = path / "asked.json"
        if question.is_file() and is_open(path):
            if read_json(question) != asked:
                raise UsageError(f"{path} holds another study", "name a new directory with --study")
            trials = _read_trials(path / "trials.jsonl")
            return cls(path), [(trial, _read_steps(_steps_path(path, n))) for n, trial in enumerate(trials, 1)]
        directory = cls.create(path, workload)
        try:
            question.write_text(json.dumps(asked, indent=1), "utf-8")
        except OSError as error:
            raise _disk_failure(path, error) from error
        return directory, []

    def add_trial(self, trial: Trial, steps: StepRecord | None = None) -> None:
        """Append a finished trial, and keep its steps; both are on disk when this returns.

        Raises:
            SystemFailure: the disk refuses.
        """
        lines = self.path / "trials.jsonl"
        try:
            steps_path = _steps_path(self.path, 1 + (lines.read_bytes().count(b"\n") if lines.exists() else 0))
            if steps is not None:
                _write_steps(steps_path, steps)
            else:
                steps_path.unlink(missing_ok=True)  # of a trial whose line a kill has torn
            with lines.open("a", encoding="utf-8") as file:
                file.write(trial.model_dump_json() + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _disk_failure(self.path, error) from error

    def finish(self, study: Study) -> Study:
        """Write the whole study, in one piece or not at all. Returns it with the directory in its recommendation."""
        answer = study.recommendation.model_copy(update={"study": str(self.path)})
        study = study.model_copy(update={"recommendation": answer})
        target = self.path / "study.json"
        try:
            draft = target.with_suffix(".json.part")
            draft.write_text(study.model_dump_json(indent=1), "utf-8")
            draft.replace(target)
        except OSError as error:
            raise _disk_failure(self.path, error) from error
        return study

    def load(self) -> Study:
        """Read the finished study.

        Raises:
            InputError: there is none, or it is broken.
        """
        path = self.path / "study.json"
        content = read_json(path)
        try:
            return Study.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise InputError(f"{path}: not a study: {field}: {first['msg']}", "run the tuning again") from None


def is_open(path: Path) -> bool:
    """Whether the study of a directory goes on: it has no answer yet, or one that was not sure when a limit came."""
    answer = path / "study.json"
    return not answer.exists() or any(f.code == NOT_SURE_YET for f in StudyDirectory(path).load().findings)


def _read_trials(path: Path) -> list[Trial]:
    """The finished trials; a last line that a kill has torn is cut off."""
    if not path.exists():
        return []
    try:
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            path.write_bytes(whole)
        return [Trial.model_validate_json(line) for line in whole.splitlines()]
    except OSError as error:
        raise _disk_failure(path, error) from error
    except ValidationError as error:
        what = f"{path}: not the trials of a study ({error.error_count()} faults)"
        raise InputError(what, "name a new directory with --study") from None


def _steps_path(path: Path, number: int) -> Path:
    """Of the trial in that line of trials.jsonl, counted from 1."""
    return path / "steps" / f"{number:04d}.npz"


def _write_steps(path: Path, steps: StepRecord) -> None:
    """An array a column, in one piece or not at all."""
    columns = dict(steps.columns)
    if isinstance(steps, RunRecord):
        columns |= {REQUEST_PREFIX + name: values for name, values in steps.requests.items()}
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".part")
    with draft.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **{name: _compact(name, all_) for name, all_ in columns.items()})
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _compact(name: str, values: NDArray[np.float64]) -> NDArray[Any]:
    """Counts as whole numbers, which compress well; times as they are: after an hour float32 has steps of 0.2 ms."""
    return values if name.endswith("_s") else values.astype(np.int64)


def _read_steps(path: Path) -> StepRecord | None:
    """The steps of a trial; None if they were not kept."""
    if not path.exists():
        return None
    hint = "remove the file: the trial counts without it, too"
    try:
        columns = read_arrays(path)
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: not the steps of a trial ({error})", hint) from None
    if "output_end_s" not in columns or any(values.ndim != 1 for values in columns.values()):
        raise InputError(f"{path}: not the steps of a trial (no columns, or no output_end_s)", hint)
    steps = {name: values for name, values in columns.items() if not name.startswith(REQUEST_PREFIX)}
    requests = {name.removeprefix(REQUEST_PREFIX): values for name, values in columns.items() if name not in steps}
    return RunRecord(steps, requests) if requests else StepRecord(steps)


def new_study_path(workload_name: str, now: datetime) -> Path:
    """A fresh directory name below the current one."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in workload_name).strip("-.") or "workload"
    return Path("maitre-studies") / f"{name}-{now:%Y%m%d-%H%M%S}"


def _disk_failure(path: Path, error: OSError) -> SystemFailure:
    return SystemFailure(f"{path}: cannot be written ({error.strerror})", "check permissions and the disk")
