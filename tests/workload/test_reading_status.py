"""A long read shows on a terminal that it goes on; off a terminal it is silent."""

import os
import pty
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture
def long_table(tmp_path: Path) -> Path:
    path = tmp_path / "long.csv"
    path.write_text("prompt_tokens,output_tokens,note\n" + f"412,87,{'x' * 1000}\n" * 10_000)
    return path


def profile(path: Path, stderr: int) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from maitre.cli import main; main()", "profile", str(path), "--json"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "200"}
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, env=environment, check=True)


def read_all(terminal: int) -> str:
    """Until nobody holds the other end; unread, a full terminal makes the program stand still."""
    pieces = []
    with suppress(OSError):
        while piece := os.read(terminal, 65536):
            pieces.append(piece)
    return b"".join(pieces).decode()


def test_a_terminal_shows_the_file_and_its_size(long_table: Path):
    ours, theirs = pty.openpty()
    with ThreadPoolExecutor(1) as reader:
        shown = reader.submit(read_all, ours)
        try:
            done = profile(long_table, theirs)
        finally:
            os.close(theirs)
    os.close(ours)
    assert "reading" in shown.result()
    assert "MB)" in shown.result()
    assert b"412" in done.stdout


def test_a_pipe_stays_silent(long_table: Path):
    assert profile(long_table, subprocess.PIPE).stderr == b""
