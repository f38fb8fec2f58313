"""`--help` comes at once: the command line imports nothing heavy until a verb needs it. Counted, not timed."""

import subprocess
import sys

import pytest

HEAVY = {"numpy", "polars", "pydantic", "scipy", "rich.progress"}

IMPORT = "import maitre.cli"
CALL = "import sys, maitre.cli; sys.argv[0] = 'maitre'; maitre.cli.main({arguments})"
STARTS = {
    "import": IMPORT,
    "help": CALL.format(arguments=["--help"]),
    "version": CALL.format(arguments=["--version"]),
    "simulate --help": CALL.format(arguments=["simulate", "--help"]),
    "tune --help": CALL.format(arguments=["tune", "--help"]),
    "replay --help": CALL.format(arguments=["replay", "--help"]),
    "unknown option": CALL.format(arguments=["simulate", "--bogus"]),
}


def imported(code):
    """Names of all modules that Python imports for a program."""
    command = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    names = {line.rpartition("|")[2].strip() for line in lines}
    assert "maitre.cli" in names, done.stderr
    return names


@pytest.mark.parametrize("code", STARTS.values(), ids=STARTS)
def test_nothing_heavy_is_imported(code):
    assert imported(code) & HEAVY == set()


def test_a_verb_that_needs_no_table_imports_no_polars():
    code = CALL.format(arguments=["profile", "fixed:512:256", "--json"])
    assert imported(code) & {"polars", "scipy"} == set()
