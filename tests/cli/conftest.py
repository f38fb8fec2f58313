"""What the tests of the verbs share: a command line run in this process."""

import pytest

from maitre.cli import main


@pytest.fixture
def run(capsys):
    """Runs a command line; returns exit code, stdout and stderr."""

    def call(*arguments):
        with pytest.raises(SystemExit) as finished:
            main([str(argument) for argument in arguments])
        return finished.value.code, *capsys.readouterr()

    return call
