"""A study on disk: a directory in which every finished trial is safe at once.

workload.json   the requests, once
asked.json      what was asked of a real server; the same question resumes the study
trials.jsonl    a line a finished trial, written as soon as it is known
study.json      the whole study, rewritten at the end
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from maitre.errors import InputError, SystemFailure, UsageError
from maitre.files import read_json
from maitre.records import Study, Trial, Workload


class StudyDirectory:
    """Where one study is kept. As a context it removes what it made, if there is an error before the first trial."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: list[Path] = []
        """The directory and its parents, as far as they are new; the innermost first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error and self._made and not (self.path / "trials.jsonl").exists():
            for name in ("workload.json", "asked.json"):
                (self.path / name).unlink(missing_ok=True)
            with suppress(OSError):  # somebody else has put something into it
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
    def resume(cls, path: Path, workload: Workload, asked: dict[str, Any]) -> tuple[StudyDirectory, list[Trial]]:
        """Open the directory of an unfinished study of the same question, or make a new one.

        Args:
            path: the directory.
            workload: the traffic.
            asked: everything that decides the trials, as JSON.

        Returns:
            The directory, and the trials that are finished already.

        Raises:
            UsageError: the directory holds something else.
        """
        question = path / "asked.json"
        if question.is_file() and not (path / "study.json").exists():
            if read_json(question) != asked:
                raise UsageError(f"{path} holds another study", "name a new directory with --study")
            return cls(path), _read_trials(path / "trials.jsonl")
        directory = cls.create(path, workload)
        try:
            question.write_text(json.dumps(asked, indent=1), "utf-8")
        except OSError as error:
            raise _disk_failure(path, error) from error
        return directory, []

    def add_trial(self, trial: Trial) -> None:
        """Append a finished trial; it is on disk when this returns."""
        try:
            with (self.path / "trials.jsonl").open("a", encoding="utf-8") as file:
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


def new_study_path(workload_name: str, now: datetime) -> Path:
    """A fresh directory name below the current one."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in workload_name).strip("-.") or "workload"
    return Path("maitre-studies") / f"{name}-{now:%Y%m%d-%H%M%S}"


def _disk_failure(path: Path, error: OSError) -> SystemFailure:
    return SystemFailure(f"{path}: cannot be written ({error.strerror})", "check permissions and the disk")
