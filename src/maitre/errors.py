"""Every error that maitre raises on purpose, and the exit code that each one means.

MaitreError
 ├── UsageError        2  a flag or its value is wrong
 ├── InputError        2  a file, a line or a field is wrong
 ├── UnsupportedError  2  right input, but a model, GPU or version that maitre does not cover
 ├── DoesNotFitError   2  the model or a request does not fit the memory
 └── SystemFailure     3  a server, the network or the disk failed

Exit code 1 is no error: the verb ran and its answer is no. 130 is an interrupted run.
"""

from __future__ import annotations


class MaitreError(Exception):
    """What went wrong in one sentence, and a hint what to do about it."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{message}\n  hint: {self.hint}" if self.hint else message


class UsageError(MaitreError):
    """A flag, or the value given to it, is wrong."""


class InputError(MaitreError):
    """A file, a line of it or a field of it is not what was expected."""


class UnsupportedError(MaitreError):
    """The input is right, but maitre does not cover this model, GPU or version yet, and does not guess."""


class DoesNotFitError(MaitreError):
    """The model or one request is larger than the memory it has to fit in."""


class SystemFailure(MaitreError):  # noqa: N818 - a failure of the surroundings, not of the input
    """A server, the network or the disk failed."""

    exit_code = 3
