"""Where inputs lie as files, and a verb of the command line run in this process."""

from __future__ import annotations

import atexit
import io
import shutil
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from maitre.cli import app

FOLDER = Path(tempfile.mkdtemp(prefix="maitre-fuzz-"))
"""Of this process; gone with it."""
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)

GIVEN = ("--prompt-tokens", "500", "--output-tokens", "200")
"""Lengths, where a verb counts sequences."""


def as_file(content: bytes, name: str = "input") -> str:
    """The path of a file with this content."""
    path = FOLDER / name
    path.write_bytes(content)
    return str(path)


def verb(*words: str) -> None:
    """A command line run in this process; what it prints must be UTF-8."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        app(words, exit_on_error=False, print_error=False, result_action="return_value")
    printed.getvalue().encode()
