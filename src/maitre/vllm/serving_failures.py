"""Failures of a server after it had started, line by line: it served, and then it could not.

Wordings: PyTorch's own, and vLLM 0.4.2 to 0.33.0 (`engine/async_llm_engine.py`, `v1/engine/exceptions.py`,
`v1/engine/core.py`, `logging_utils/dump_input.py`, `v1/executor/multiproc_executor.py`).
"""

from __future__ import annotations

import re
from typing import Literal

from maitre.records import Record
from maitre.vllm.startup_log_starts import READY

ServingFailureCode = Literal["out-of-memory", "engine-died", "step-timed-out"]

_READY = re.compile(READY.pattern + r"|\bserver (?:has )?started\b|Dumping input data", re.IGNORECASE)
_BEGINS_AGAIN = re.compile(r"Initializing an? (?:V1 )?LLM engine|vLLM API server version|vLLM server version")
_STOPPED = re.compile(r"\[shutdown\] |^Shutting down|[Rr]eceived (?:signal )?SIG(?:TERM|INT)|Gracefully stopping")
"""Somebody stops it; what its processes complain of then is no failure."""
_KINDS: tuple[tuple[ServingFailureCode, re.Pattern[str]], ...] = (
    (
        "out-of-memory",
        re.compile(
            r"OutOfMemoryError|(?:CUDA|HIP|XPU|NPU)(?: error:)? out of memory|not enough GPU memory|"
            r"CUBLAS_STATUS_ALLOC_FAILED"
        ),
    ),
    (
        "step-timed-out",
        re.compile(r"RPC call to \w+ timed out|Execution of the model timed out|execute_model timed out"),
    ),
    (
        "engine-died",
        re.compile(
            r"EngineDeadError|EngineCore encountered a(?:n issue| fatal error)|EngineCore failed|"
            r"[Bb]ackground loop has errored|Dumping (?:input data|scheduler output)|died unexpectedly"
        ),
    ),
)
"""From the cause to what follows from it: what is logged after a failure counts as its consequence."""
_MAX_WORDS = 300


class ServingFailure(Record):
    """One failure under load."""

    code: ServingFailureCode
    message: str
    """The line that shows it, shortened."""
    num_lines: int
    """Lines that speak of it or of what followed."""


class FailureReader:
    """Takes the messages of a log in their order."""

    def __init__(self) -> None:
        self._is_ready = False
        self._failures: list[ServingFailure] = []
        self._is_open = False

    def add(self, message: str) -> None:
        """Read one message, without time, process and place."""
        if _BEGINS_AGAIN.search(message) or (not self._is_open and _STOPPED.search(message)):
            self._is_ready = self._is_open = False
        elif self._is_ready and (code := _code(message)) is not None:
            self._note(code, message)
        elif not self._is_ready and _READY.search(message):
            self._is_ready = True

    def failures(self) -> tuple[ServingFailure, ...]:
        """One for each life of the server that ended so, by its most telling line."""
        return tuple(self._failures)

    def _note(self, code: ServingFailureCode, message: str) -> None:
        words = " ".join(message.split())[:_MAX_WORDS]
        if not self._is_open:
            self._failures.append(ServingFailure(code=code, message=words, num_lines=1))
            self._is_open = True
            return
        last = self._failures[-1]
        order = [kind for kind, _ in _KINDS]
        told = (code, words) if order.index(code) < order.index(last.code) else (last.code, last.message)
        self._failures[-1] = ServingFailure(code=told[0], message=told[1], num_lines=last.num_lines + 1)


def _code(message: str) -> ServingFailureCode | None:
    return next((code for code, pattern in _KINDS if pattern.search(message)), None)
