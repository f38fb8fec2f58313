"""Live dials: a vLLM scheduler whose two limits and KV pool are turned between runs, and which records every step.

This file needs vLLM and the standard library only. Put its folder on the PYTHONPATH of the environment or container:

    MAITRE_DIALS_DIR=/some/dir vllm serve MODEL --scheduler-cls maitre_dials.DialScheduler ...

maitre writes `control.json` into that directory; `state.json`, `run-N.json`, `run-N.steps` and `run-N.requests` come
back (`maitre.trial.dials` reads them). A run begins with the first request that finds the server empty after a new
control. Nothing is ever set above the values that the server was started with: vLLM's buffers have their size.
"""

# ruff: noqa: INP001 - the folder is put on a PYTHONPATH; it is no package
# mypy: disable-error-code="import-not-found,misc"
from __future__ import annotations

import copy
import json
import logging
import math
import os
import re
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.platforms import current_platform
from vllm.version import __version__ as vllm_version

PROTOCOL = 2
OLDEST, NEWEST = (0, 9), (0, 33)
"""vLLM versions whose scheduler was read for this file."""
ASYNC_SINCE, PREEMPT_METHOD_SINCE, WATERMARK_SINCE = (0, 10), (0, 12), (0, 24)
"""AsyncScheduler; Scheduler._preempt_request (before: inside schedule()); KVCacheManager.watermark_blocks."""
ATTRIBUTES = (
    ("max_num_seqs", "scheduler", "max_num_running_reqs", OLDEST),
    ("max_num_seqs", "scheduler", "max_num_active_reqs", (0, 31)),
    ("max_num_batched_tokens", "scheduler", "max_num_scheduled_tokens", OLDEST),
    ("max_num_batched_tokens", "config", "max_num_batched_tokens", (0, 28)),
)
"""Where schedule() reads each dial, and since which version it reads it there."""
STEP_COLUMNS = (
    "schedule_start_s", "schedule_end_s", "num_decodes", "decode_context_tokens", "num_prefills", "prefill_tokens",
    "prefill_attention_pairs", "num_preemptions", "num_running", "num_waiting", "num_free_blocks", "output_start_s",
    "output_end_s",
)  # fmt: skip
REQUEST_COLUMNS = (
    "request_index", "arrival_s", "first_scheduled_s", "first_token_s", "last_token_s", "num_preemptions",
    "num_cached_tokens", "num_prompt_tokens", "num_output_tokens",
)  # fmt: skip
FLUSH_S = 0.5
"""Seconds that rows wait at most while the server is busy: whoever watches a run looks once a second."""
REQUEST_ID = re.compile(r"((?<!chat)cmpl-)?maitre-(\d+)-(\d+)(?:-(\d+))?")
"""In the engine's request id: cmpl-ID-PLACE or chatcmpl-ID, from 0.14 with eight random characters behind."""

logger = logging.getLogger("vllm.maitre_dials")


def _known_version(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if not OLDEST <= version <= NEWEST:
        known = "{}.{} to {}.{}".format(*OLDEST, *NEWEST)
        raise ImportError(f"maitre's live dials know vLLM {known}, not {text}: start the server once a cell instead")
    return version


VERSION = _known_version(vllm_version)

from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402 - only in a version that has it


def request_index(request_id: str, run: int) -> float:
    """The index that maitre gave to a request of this run; NaN if it is none of them.

    A completion request may hold a list of prompts: the index of the first is in its id, the others follow.
    """
    match = REQUEST_ID.search(request_id)
    if match is None or int(match[2]) != run:
        return math.nan
    return int(match[3]) + (int(match[4] or 0) if match[1] else 0)


def describe_flags(config: Any) -> dict[str, Any]:
    """The flags beside the dials that decide what fits and how it is scheduled, from vLLM's whole configuration."""
    scheduler, cache = config.scheduler_config, config.cache_config
    return {
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        "async_scheduling": bool(getattr(scheduler, "async_scheduling", False)),
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "kv_cache_dtype": str(cache.cache_dtype),
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "long_prefill_token_threshold": getattr(scheduler, "long_prefill_token_threshold", 0),
        "watermark": getattr(scheduler, "watermark", 0.0),
        "scheduling_policy": str(getattr(scheduler, "policy", "fcfs")),
    }


def describe_model(config: Any) -> dict[str, Any]:
    """The model's config.json as vLLM read it; empty if it cannot be told."""
    try:
        content: dict[str, Any] = json.loads(json.dumps(config.model_config.hf_config.to_dict(), default=str))
    except (AttributeError, TypeError, ValueError):
        logger.exception("maitre's dials cannot tell the model's configuration")
        return {}
    return content


def describe_gpu() -> str:
    """The name of the device, as its driver has it."""
    try:
        return str(current_platform.get_device_name())
    except (NotImplementedError, RuntimeError):
        return "unknown"


def _write_json(path: Path, content: dict[str, Any]) -> None:
    draft = path.with_suffix(f".{os.getpid()}.draft")
    draft.write_text(json.dumps(content))
    draft.replace(path)


@dataclass(slots=True)
class _Served:
    """A request that has not ended; times of time.perf_counter()."""

    request: Any
    index: float
    arrival_s: float
    first_scheduled_s: float = math.nan
    first_token_s: float = math.nan
    num_preemptions: int = 0
    num_cached_tokens: int = 0


class _Run:
    """The files of one run; their times count from the run's first schedule()."""

    def __init__(self, directory: Path, number: int, applied: dict[str, int]) -> None:
        self.number, self.zero_s, self.written_s = number, math.nan, math.nan
        self._path, self._applied = directory / f"run-{number}", applied
        self.steps, self.requests = array("d"), array("d")

    def begin(self, zero_s: float) -> None:
        """Start the files at the first schedule()."""
        self.zero_s = self.written_s = zero_s
        for name in ("steps", "requests"):
            self._path.with_suffix(f".{name}").write_bytes(b"")
        about = {"protocol": PROTOCOL, "run": self.number, "applied": self._applied}
        about |= {"zero_unix_s": time.time() - (time.perf_counter() - zero_s)}
        columns = {"step_columns": STEP_COLUMNS, "request_columns": REQUEST_COLUMNS}
        _write_json(self._path.with_suffix(".json"), about | columns)

    def add_step(self, row: tuple[float, ...], start_s: float, end_s: float) -> None:
        """A step whose output was processed from `start_s` to `end_s`."""
        zero_s = self.zero_s
        self.steps.extend((row[0] - zero_s, row[1] - zero_s, *row[2:], start_s - zero_s, end_s - zero_s))

    def add_request(self, served: _Served, last_token_s: float) -> None:
        """A request that ended; an aborted one has no last token (NaN)."""
        times = (served.arrival_s, served.first_scheduled_s, served.first_token_s, last_token_s)
        tokens = (served.request.num_prompt_tokens, served.request.num_output_tokens)
        counts = (served.num_preemptions, served.num_cached_tokens, *tokens)
        self.requests.extend((served.index, *(t - self.zero_s for t in times), *counts))

    def write(self, now_s: float) -> None:
        """Append what is new to the files; nothing before the first schedule()."""
        if math.isnan(self.zero_s):
            return
        self.written_s = now_s
        for name, rows in (("steps", self.steps), ("requests", self.requests)):
            if rows:
                if sys.byteorder == "big":
                    rows.byteswap()
                with self._path.with_suffix(f".{name}").open("ab") as file:
                    file.write(rows.tobytes())
                del rows[:]


class _Dials:
    """The two limits and the pool of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.pool = scheduler, scheduler.kv_cache_manager.block_pool
        self.config = scheduler.scheduler_config = copy.copy(scheduler.scheduler_config)  # else the model runner's too
        self.start: dict[str, int] = {}
        for dial, owner, name in self._attributes():
            self.start[dial] = min(getattr(owner, name), self.start.get(dial, getattr(owner, name)))
        self.start["num_gpu_blocks"] = self.pool.num_gpu_blocks
        self.applied = dict(self.start)
        self._held: list[Any] = []

    def turn(self, control: Any) -> str | None:
        """Set all dials, or say why not and change nothing; only while the server is empty."""
        wanted = {name: control.get(name) for name in self.start}
        if wanted["num_gpu_blocks"] is None:
            wanted["num_gpu_blocks"] = self.start["num_gpu_blocks"]
        if refusal := self._refusal(wanted):
            return refusal
        if self.scheduler.cache_config.enable_prefix_caching:
            self.scheduler.kv_cache_manager.reset_prefix_cache()
        self._hold_back(self.start["num_gpu_blocks"] - wanted["num_gpu_blocks"])
        for dial, owner, name in self._attributes():
            setattr(owner, name, wanted[dial])
        self.applied = wanted
        return None

    def _refusal(self, wanted: dict[str, Any]) -> str | None:
        for name, value in wanted.items():
            if type(value) is not int or value < 1:
                return f"{name} must be a whole number above 0, not {value!r}"
            if value > self.start[name]:
                return f"{name} {value} is above {self.start[name]}, the value that the server was started with"
        num_seqs, num_tokens, num_blocks = wanted.values()
        longest, is_smaller = self.scheduler.max_model_len, num_blocks < self.start["num_gpu_blocks"]
        is_whole = getattr(self.config, "enable_chunked_prefill", None) is False
        checks = {
            "max_num_batched_tokens must be at least max_num_seqs": num_tokens < num_seqs,
            f"max_num_batched_tokens must be at least {longest} without chunked prefill": is_whole
            and num_tokens < longest,
            f"num_gpu_blocks {num_blocks} does not hold a request of max_model_len ({longest})": (
                is_smaller and (num_blocks - 1) * self.scheduler.block_size < longest
            ),
            "KV blocks are in use although no request is left": (
                self.pool.get_num_free_blocks() != self.pool.num_gpu_blocks - 1
            ),
        }
        return next((refusal for refusal, is_broken in checks.items() if is_broken), None)

    def _hold_back(self, num_blocks: int) -> None:
        """Give back the held blocks and hold others: the pool looks as if it had started smaller."""
        pool = self.pool
        pool.free_blocks(self._held)
        self._held = pool.get_new_blocks(num_blocks) if num_blocks else []
        pool.num_gpu_blocks = self.start["num_gpu_blocks"] - num_blocks
        if VERSION >= WATERMARK_SINCE:
            self.scheduler.kv_cache_manager.watermark_blocks = int(self.config.watermark * pool.num_gpu_blocks)

    def _attributes(self) -> list[tuple[str, Any, str]]:
        owners = {"scheduler": self.scheduler, "config": self.config}
        return [(dial, owners[owner], name) for dial, owner, name, since in ATTRIBUTES if since <= VERSION]


class _Watch:
    """Looks for a control while the server is empty, and records the runs."""

    def __init__(self, scheduler: Any) -> None:
        if not os.environ.get("MAITRE_DIALS_DIR"):
            raise RuntimeError("MAITRE_DIALS_DIR must name the directory that the server shares with maitre")
        self.scheduler, self.dials = scheduler, _Dials(scheduler)
        self.directory = Path(os.environ["MAITRE_DIALS_DIR"])
        self.directory.mkdir(parents=True, exist_ok=True)
        self.run: _Run | None = None
        self.run_number: int | None = None
        self.is_updating = False
        self.served: dict[str, _Served] = {}
        self.prefilling: dict[str, _Served] = {}
        self.ended: list[_Served] = []
        self.in_flight: dict[int, tuple[_Run, tuple[float, ...]]] = {}
        self.num_preemptions = self.context = 0
        self.last_decodes: dict[str, int] | None = None
        config = scheduler.vllm_config
        start = self.dials.start | describe_flags(config)
        start |= {"block_size": scheduler.block_size, "max_model_len": scheduler.max_model_len}
        self.facts = {"protocol": PROTOCOL, "pid": os.getpid(), "vllm_version": vllm_version, "start": start}
        self.facts |= {"gpu": describe_gpu(), "model_config": describe_model(config)}
        self.control = str(self.directory / "control.json")
        self.stamp = self._stamp()  # a control from before the start was meant for another server
        self.write_state(None)

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.control)  # noqa: PTH116 - every request to an empty server waits for this
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    def write_state(self, refused: str | None) -> None:
        """Say which dials are set."""
        state = {"run": self.run_number, "applied": self.dials.applied, "refused": refused}
        _write_json(self.directory / "state.json", self.facts | state)

    def look_for_control(self) -> None:
        """Begin the run that a new control asks for. Without requests nothing else may change."""
        stamp = self._stamp()
        if stamp is None or stamp == self.stamp:
            return
        self.stamp, self.run, self.last_decodes, self.num_preemptions = stamp, None, None, 0
        try:
            control = json.loads(Path(self.control).read_text())
            self.run_number = int(control["run"])
            refused = self.dials.turn(control)
        except (OSError, ValueError, KeyError, TypeError) as error:
            refused = f"control.json cannot be read ({error!r})"
        if refused is None and self.run_number is not None:
            self.run = _Run(self.directory, self.run_number, self.dials.applied)
        self.recording(self.write_state, refused)

    def recording(self, write: Callable[..., None], *arguments: Any) -> None:
        """Write to the disk; if that fails the server goes on, unrecorded."""
        try:
            write(*arguments)
        except OSError:
            logger.exception("maitre's dials stop recording run %s", self.run_number)
            self.run = None

    def arrive(self, request: Any) -> None:
        """Before a request is added."""
        if not self.scheduler.requests:
            self.look_for_control()
        if self.run and request.request_id not in self.served:
            index = request_index(request.request_id, self.run.number)
            self.served[request.request_id] = _Served(request, index, time.perf_counter())

    def preempted(self, request: Any) -> None:
        """A running request loses its blocks."""
        self.num_preemptions += 1
        if served := self.served.get(request.request_id):
            served.num_preemptions += 1

    def scheduled(self, output: Any, start_s: float, end_s: float) -> None:
        """After schedule(): keep the step's row until its output is processed."""
        run, tokens = self.run, output.num_scheduled_tokens
        if run is None or not tokens:
            return
        if math.isnan(run.zero_s):
            self.recording(run.begin, start_s)
        if tokens == self.last_decodes and not self.num_preemptions:
            self.context += len(tokens)  # the decodes of the step before, each with one token more
            work = (len(tokens), self.context, 0, 0, 0)
        else:
            work = self.count(tokens, start_s)
            self.context, self.last_decodes = work[1], None if work[2] else tokens
        scheduler = self.scheduler
        queues = (len(scheduler.running), len(scheduler.waiting), self.dials.pool.get_num_free_blocks())
        self.in_flight[id(output)] = (run, (start_s, end_s, *work, self.num_preemptions, *queues))
        self.num_preemptions = 0

    def count(self, num_scheduled_tokens: dict[str, int], start_s: float) -> tuple[int, int, int, int, int]:
        """Decodes and their context; prefills, their tokens and their query-key pairs."""
        decodes = context = prefills = prefill_tokens = pairs = 0
        requests = self.scheduler.requests
        for request_id, n in num_scheduled_tokens.items():
            request = requests[request_id]
            computed = request.num_computed_tokens - n  # vLLM has advanced it already
            if n == 1 and computed >= request.num_prompt_tokens:
                decodes, context = decodes + 1, context + computed + 1
                continue
            prefills, prefill_tokens = prefills + 1, prefill_tokens + n
            pairs += n * computed + n * (n + 1) // 2
            served = self.served.get(request_id)
            if served and math.isnan(served.first_scheduled_s):
                served.first_scheduled_s, served.num_cached_tokens = start_s, computed
                self.prefilling[request_id] = served
        return decodes, context, prefills, prefill_tokens, pairs

    def computed(self, output: Any, start_s: float, end_s: float) -> None:
        """After update_from_output(): the step's row is whole."""
        run, row = self.in_flight.pop(id(output), (None, ()))
        if run:
            run.add_step(row, start_s, end_s)
        for request_id, served in list(self.prefilling.items()):
            if served.request.num_output_tokens:
                served.first_token_s = end_s
                del self.prefilling[request_id]
        while self.ended:
            self.end(self.ended.pop(), end_s)
        self.write(end_s)

    def freed(self, request: Any) -> None:
        """A request ended: with its last token if an output is being processed, else it was aborted."""
        served = self.served.pop(request.request_id, None)
        if served and self.is_updating:
            self.ended.append(served)
        elif served:
            self.end(served, math.nan)
            self.write(time.perf_counter())

    def end(self, served: _Served, last_token_s: float) -> None:
        """Keep the row of a request."""
        self.prefilling.pop(served.request.request_id, None)
        if self.run:
            self.run.add_request(served, last_token_s)

    def write(self, now_s: float) -> None:
        """Rows reach the disk when the server is empty, and every FLUSH_S seconds."""
        if self.run and (not self.scheduler.requests or now_s - self.run.written_s > FLUSH_S):
            self.recording(self.run.write, now_s)


class SyncDialScheduler(Scheduler):
    """The dials on the scheduler that waits for each step's output."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.vllm_config.speculative_config or self.vllm_config.parallel_config.data_parallel_size > 1:
            raise RuntimeError("maitre's live dials know neither speculative decoding nor data parallelism")
        self.maitre = _Watch(self)
        if VERSION < PREEMPT_METHOD_SINCE:
            self._watch_frees(self.kv_cache_manager)

    def _watch_frees(self, manager: Any) -> None:
        free = manager.free

        def free_and_tell(request: Any, *args: Any, **kwargs: Any) -> Any:
            if not request.is_finished():
                self.maitre.preempted(request)
            return free(request, *args, **kwargs)

        manager.free = free_and_tell

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Turn the dials first, if the server is empty."""
        self.maitre.arrive(request)
        super().add_request(request, *args, **kwargs)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Record what is scheduled."""
        start_s = time.perf_counter()
        output = super().schedule(*args, **kwargs)
        self.maitre.scheduled(output, start_s, time.perf_counter())
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Record when the output was processed."""
        start_s, self.maitre.is_updating = time.perf_counter(), True
        result = super().update_from_output(scheduler_output, *args, **kwargs)
        self.maitre.is_updating = False
        self.maitre.computed(scheduler_output, start_s, time.perf_counter())
        return result

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.maitre.preempted(request)
        return super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._free_request(request, *args, **kwargs)
        self.maitre.freed(request)
        return result


DialScheduler: Any = SyncDialScheduler
if VERSION >= ASYNC_SINCE:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    class _AsyncDialScheduler(SyncDialScheduler, AsyncScheduler):
        """The dials on the scheduler of the server's choice; vLLM wants to see a subclass of AsyncScheduler."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
            is_async = config.scheduler_config.async_scheduling
            return super().__new__(cls) if is_async else SyncDialScheduler(*args, **kwargs)

    DialScheduler = _AsyncDialScheduler
