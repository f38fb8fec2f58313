"""Where one start ends and the next begins: lines of several starts in one file must not be mixed.

A start goes through stages: command, arguments, engine, weights, memory, KV pool. A line of an earlier stage than the
same process has reached already belongs to the next start; so does any line of the first stages after the engine began.
Ranks interleave, so stages are compared process by process.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from maitre.vllm.startup_log_facts import Facts, memory_facts
from maitre.vllm.startup_log_flags import COMMAND, CONFIG, DUMP, IN_FORCE, Flags, flags_in
from maitre.vllm.startup_log_lines import LogLine, Process
from maitre.vllm.startup_log_ranks import Observation

READY = re.compile(r"Application startup complete|Avg prompt throughput|Starting vLLM API server|Uvicorn running on")
FAILED = re.compile(
    r"(?:EngineCore|Engine core|Engine process|WorkerProc|core proc)\w*(?: \w+){0,3} fail|initialization failed|"
    r"EngineDeadError|Background loop has errored|died unexpectedly"
)
_STOPPED = re.compile(r"\[shutdown\] |^Shutting down|[Rr]eceived (?:signal )?SIG(?:TERM|INT)|Gracefully stopping")
"""Somebody stops a server that serves; what its processes complain of then is no failure."""
_READY_LINE = "Application startup complete."
_ERROR = re.compile(r"(?:[\w.]{1,200}\.)?\w{0,80}(?:Error|Exception)(?::\s|$)")
_ROUTINE = re.compile(r"Avg prompt throughput|\" \d{3}(?: \w+)?$|(?:Received|Added|Finished|Aborted) request|Route: ")
_ENGINE_NUMBER = re.compile(r"Engine (\d{1,6}): ")

_BEGINS_COMMAND = re.compile(
    r"\s*(?:\S{0,80}[$#%>+]\s+)?(?:docker|podman|nerdctl|vllm|\S{0,200}python|exec|sudo|[A-Z_]{2,80}=)"
)
_MAX_COMMAND_LINES = 80

KEPT_CHARACTERS = 2**19
"""How much of a start's text is kept at its beginning, and as much at its end, to see why it failed."""
_MAX_KEPT_LINE = 2000
_MAX_OBSERVATIONS = 4096

_COMMAND, _ARGUMENTS, _ENGINE, _WEIGHTS, _MEMORY, _POOL, _FAILURE = range(7)
_BEGINNINGS = (
    (("Model loading took", "Loading model weights took", "Starting to load model"), _WEIGHTS),
    (("Memory profiling", "Available KV cache memory"), _MEMORY),
)


class Said(NamedTuple):
    """What one line says of a start."""

    facts: Facts
    place: int
    """Where its flags stand; see `maitre.vllm.startup_log_flags`."""
    flags: Flags
    stage: int | None
    is_dump: bool
    """Whether it lists the server's arguments or names its version: the beginning of a start."""


class Start:
    """What is known so far of one start."""

    def __init__(self, source: str, number: int) -> None:
        self.source = source
        self.number = number
        self.observations: list[Observation] = []
        self.is_ready = False
        self._is_stopped = False
        self._is_broken = False
        self._has_error = False
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._head_size = self._tail_size = 0
        self._stages: dict[tuple[str, int | None], int] = {}
        self._flags: dict[str, tuple[int, Any]] = {}
        self._is_begun = False
        self._seen_dump = False

    @property
    def flags(self) -> Flags:
        """Each flag as the highest place says it."""
        return {key: value for key, (_, value) in self._flags.items()}

    @property
    def is_empty(self) -> bool:
        """Whether nothing of a start was seen."""
        return not (self.observations or self._flags or self.failed)

    @property
    def failed(self) -> bool:
        """Whether it says that it failed, or the last that it says is an error."""
        return self._is_broken or self._has_error

    def text(self) -> str:
        """What it said, without routine lines; the middle of a long log is left out."""
        return "\n".join([*self._head, *self._tail])

    def ends_before(self, line: LogLine, said: Said) -> bool:
        """Whether this line is the first of another start."""
        if said.stage is None or self.is_empty:
            return False
        if said.stage == _COMMAND:
            return self._seen_dump or self._is_begun
        if said.stage == _ARGUMENTS:
            named_again = self._seen_dump and said.is_dump and self._is_begun
            failed = self.failed and self._seen_dump
            return named_again or failed or max(self._stages.values(), default=0) >= _WEIGHTS
        reached = self._stages.get(_key(line.process), 0)
        untagged_engines = line.process.dp is None and (self.flags.get("data_parallel_size") or 1) > 1
        if said.stage == _MEMORY and (untagged_engines or reached < _POOL):
            return False
        return reached >= _POOL and said.stage < _POOL

    def add(self, line: LogLine, said: Said) -> None:
        """Take in one line."""
        key = _key(line.process)
        if said.stage is not None:
            self._stages[key] = max(said.stage, self._stages.get(key, 0))
            self._is_begun = self._is_begun or said.stage >= _ENGINE
            self._seen_dump = self._seen_dump or said.is_dump
            self._has_error = self._has_error and said.stage < _ENGINE  # it got further
        for name, value in said.flags.items():
            if value is not None and said.place >= self._flags.get(name, (0, None))[0]:
                self._flags[name] = (said.place, value)
        if said.facts and len(self.observations) < _MAX_OBSERVATIONS:
            number = _ENGINE_NUMBER.match(line.message)
            process = line.process._replace(dp=int(number[1])) if number else line.process
            self.observations.append(Observation(process, said.facts))
        if not self._is_stopped:
            self._note_end(line)
            self._keep(line.message)

    def _note_end(self, line: LogLine) -> None:
        if READY.search(line.message):
            if not self.is_ready:
                self._keep(_READY_LINE)
            self.is_ready, self._has_error = True, False
        elif self.is_ready and not self.failed and _STOPPED.search(line.message):
            self._is_stopped = True
        elif FAILED.search(line.message):
            self._is_broken = True
            self._stages[_key(line.process)] = _FAILURE
        elif _ERROR.match(line.message) and not self.is_ready and line.level in {"", "ERROR", "CRITICAL"}:
            self._has_error = True

    def _keep(self, message: str) -> None:
        message = message[:_MAX_KEPT_LINE]
        if _ROUTINE.search(message[-200:]) or _ROUTINE.match(message):
            return
        if self._head_size < KEPT_CHARACTERS:
            self._head.append(message)
            self._head_size += len(message)
            return
        self._tail.append(message)
        self._tail_size += len(message)
        while self._tail_size > KEPT_CHARACTERS:
            self._tail_size -= len(self._tail.popleft())


def with_whole_commands(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """The lines, a command that is continued by backslashes joined to one."""
    held: list[LogLine] = []
    for line in lines:
        if held or (_BEGINS_COMMAND.match(line.message) and line.message.endswith("\\")):
            held.append(line)
            if line.message.endswith("\\") and len(held) < _MAX_COMMAND_LINES:
                continue
            yield held[0]._replace(message=" ".join(part.message.removesuffix("\\").strip() for part in held))
            held = []
        else:
            yield line
    yield from held


def what_it_says(message: str) -> Said:
    """The figures and flags in a message, and the stage of a start that it belongs to."""
    place, flags = flags_in(message)
    facts = memory_facts(message)
    dump = place == DUMP or (place == IN_FORCE and "version" in flags)
    return Said(facts, place, flags, _stage(message, facts, place, is_dump=dump), is_dump=dump)


def _key(process: Process) -> tuple[str, int | None]:
    return process.name, process.pid


def _stage(message: str, facts: Facts, place: int, *, is_dump: bool) -> int | None:
    if is_dump or place == COMMAND:
        return _ARGUMENTS if is_dump else _COMMAND
    if facts.keys() & {"kv_cache_tokens", "num_gpu_blocks", "max_concurrency"}:
        return _POOL
    if "available_kv_gib" in facts and "max_model_len" not in facts:
        return _MEMORY
    if place == CONFIG:
        return _ENGINE
    return next((stage for words, stage in _BEGINNINGS if message.startswith(words)), None)
