"""A long read shows on a terminal that it goes on; off a terminal it is silent."""

import os
import pty
import subprocess
import sys
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


def test_a_terminal_shows_the_file_and_its_size(long_table: Path):
    ours, theirs = pty.openpty()
    done = profile(long_table, theirs)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "reading" in shown
    assert "MB)" in shown
    assert b"412" in done.stdout


def test_a_pipe_stays_silent(long_table: Path):
    assert profile(long_table, subprocess.PIPE).stderr == b""
