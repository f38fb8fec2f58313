"""Stored workloads: one JSON file, schema maitre-workload-1."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from maitre.errors import InputError, SystemFailure
from maitre.files import load_json
from maitre.records import Workload

_SCHEMA = "maitre-workload-1"
_LARGEST = {"prompt_tokens": 2**31 - 1, "output_tokens": 2**31 - 1, "arrival_s": 10**10}
"""Tokens as `parse_token_count` reads them; and 300 years, more than times in nanoseconds can be apart."""


def save_workload(workload: Workload, path: Path | str) -> None:
    """Write a workload as JSON; `-` is stdout. The file is complete or not there at all.

    Raises:
        SystemFailure: the disk or the permissions refuse.
    """
    write_text(workload.model_dump_json(exclude_none=True) + "\n", path)


def write_text(text: str, path: Path | str) -> None:
    """Write a text; `-` is stdout. The file is complete or not there at all.

    Raises:
        SystemFailure: the disk or the permissions refuse.
    """
    if str(path) == "-":
        sys.stdout.write(text)
        return
    try:
        _write_whole(Path(path), text)
    except OSError as error:
        raise SystemFailure(f"{path}: cannot be written ({error.strerror})", "check the folder and the disk") from error


def parse_stored(text: str, source: str) -> Workload | None:
    """Read a stored workload; None when the text is something else, such as a request table.

    Args:
        text: the file's text.
        source: the file's name in error messages.

    Raises:
        InputError: a stored workload of another schema, or with a wrong field; names it.
    """
    value = _parse_object(text)
    if value is None or not str(value.get("schema_version", "")).startswith("maitre-"):
        return None
    if value["schema_version"] != _SCHEMA:
        raise InputError(f"{source}: holds {value['schema_version']}, {_SCHEMA} was expected", "see maitre profile -o")
    try:
        workload = Workload.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        where = f"{source}, field '{field}'" if field else source
        raise InputError(f"{where}: {first['msg']}", "store the workload again with maitre profile -o") from None
    except (TypeError, OverflowError) as error:
        raise InputError(f"{source}: {error}", "store the workload again with maitre profile -o") from None
    _check_size(workload, source)
    return workload


def _check_size(workload: Workload, source: str) -> None:
    """Refuse numbers that no other source of requests lets in.

    Raises:
        InputError: names the field.
    """
    for field, most in _LARGEST.items():
        column = getattr(workload, field)
        if column is not None and float(np.abs(column).max()) > most:
            what = f"{source}, field '{field}': more than {most:,}"
            raise InputError(what, "store the workload again with maitre profile -o")


def _parse_object(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{") or "schema_version" not in text:
        return None
    try:
        value = load_json(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _write_whole(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():  # a pipe or a device cannot be replaced
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()  # a symbolic link stays one
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
