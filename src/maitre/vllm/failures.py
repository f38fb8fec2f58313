"""Why a vLLM server did not start, or died: one code, one sentence, one remedy, from its log.

The wordings are those of vLLM 0.4.2 to 0.33.0, read in its source (`config/scheduler.py`, `v1/core/kv_cache_utils.py`,
`v1/worker/utils.py`, `v1/worker/gpu_model_runner.py`, `v1/engine/`, V0's `worker/worker.py`). PyTorch's out-of-memory
error is the same everywhere; what vLLM was doing is read from the traceback above it, else from the progress lines.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence
from typing import Literal, NamedTuple

from maitre.records import Record
from maitre.vllm.log_text import log_lines, message_of

FailureCode = Literal[
    "oom-weights", "no-kv-memory", "kv-smaller-than-max-model-len", "oom-sampler", "oom-graphs", "oom-other",
    "free-memory-below-utilization", "refused-setting", "port-in-use", "model-not-found", "unsupported-scheduler",
    "crash-under-load", "timeout", "killed", "hang", "requests-failed", "other-traffic", "unknown",
]  # fmt: skip

NUM_LAST_LINES = 20
_MAX_CHARACTERS = 4000
"""Of a line that is looked at: the time for it grows with the square of them."""


class ServerFailure(Record):
    """One failed server."""

    code: FailureCode
    message: str
    """What happened, with vLLM's own words."""
    remedy: str
    """What to change."""
    last_lines: tuple[str, ...]
    """The end of the log, without colours."""


class _Rule(NamedTuple):
    code: FailureCode
    pattern: str
    what: str
    remedy: str
    """May name groups of the pattern, and `share` where it has `free` and `total`."""


_RULES = (
    _Rule("oom-sampler", r"out of memory occurred when warming up (?:sampler|pooler)\b.*?with (?P<seqs>\d+) dummy",
          "no memory for the sampler's warm-up",
          "lower --max-num-seqs below {seqs}, or lower --gpu-memory-utilization"),
    _Rule("free-memory-below-utilization",
          r"\((?P<free>\d{1,6}(?:\.\d{1,6})?)/(?P<total>\d{1,6}(?:\.\d{1,6})?) GiB\)(?: on startup)? is less than "
          r"desired [CG]PU memory utilization",
          "less memory is free than --gpu-memory-utilization asks for",
          "stop what else uses the GPU, or lower --gpu-memory-utilization to {share}"),
    _Rule("no-kv-memory", r"No available memory for the cache blocks|Cannot auto-fit max_model_len: not enough GPU",
          "nothing is left for the KV cache",
          "raise --gpu-memory-utilization, or lower --max-num-batched-tokens"),
    _Rule("kv-smaller-than-max-model-len", r"models?'s? max seq len.*estimated maximum model length is (?P<tokens>\d+)",
          "the KV cache does not hold one request of max_model_len",
          "lower --max-model-len to {tokens} or less, or raise --gpu-memory-utilization"),
    _Rule("kv-smaller-than-max-model-len", r"that can be stored in KV cache \((?P<tokens>\d+)\)",
          "the KV cache does not hold one request of max_model_len",
          "lower --max-model-len to {tokens} or less, or raise --gpu-memory-utilization"),
    _Rule("kv-smaller-than-max-model-len", r"To serve at least one request with the models?'s? max seq len",
          "the KV cache does not hold one request of max_model_len",
          "lower --max-model-len, or raise --gpu-memory-utilization"),
    _Rule("no-kv-memory", r"Available KV cache memory: -", "nothing is left for the KV cache",
          "raise --gpu-memory-utilization, or lower --max-num-batched-tokens"),
    _Rule("refused-setting",
          r"max_num_batched_tokens \((?P<tokens>\d+)\) must be greater than or equal to max_num_seqs \((?P<seqs>\d+)\)",
          "vLLM refuses the setting",
          "raise --max-num-batched-tokens to {seqs} or more, or lower --max-num-seqs to {tokens}"),
    _Rule("refused-setting",
          r"max_num_batched_tokens \(\d+\) is smaller than max_model_len \((?P<length>\d+)\)",
          "vLLM refuses the setting",
          "raise --max-num-batched-tokens to {length}, or leave --no-enable-chunked-prefill away"),
    _Rule("refused-setting",
          r"max_num_seqs \(\d+\) exceeds available Mamba cache blocks \((?P<blocks>\d+)\)",
          "vLLM refuses the setting", "lower --max-num-seqs to {blocks} or less"),
    _Rule("refused-setting",
          r"long_prefill_token_threshold \(\d+\) cannot be greater than|max_num_active_seqs \(\d+\) cannot be greater",
          "vLLM refuses the setting", "lower the first of the two flags that it names"),
    _Rule("refused-setting",
          r"increasing max_num_batched_tokens or decreasing num_speculative_tokens|does not allow any tokens to be |"
          r"does not have enough slots to schedule a token|[Pp]lease increase max_num_batched_tokens",
          "vLLM refuses the setting", "raise --max-num-batched-tokens"),
    _Rule("unsupported-scheduler", r"unrecognized arguments:.*--scheduler[-_]cls",
          "this vLLM has no --scheduler-cls", "use vLLM 0.8 or later, or restart the server for every cell"),
    _Rule("unsupported-scheduler", r"in get_scheduler_cls\b|"
          r"live dials know vLLM",
          "the server cannot load the scheduler of --scheduler-cls",
          "put its file on the server's PYTHONPATH, or leave --scheduler-cls away and restart for every cell"),
    _Rule("refused-setting", r"error: (?:unrecognized arguments|argument -|the following arguments|ambiguous option)",
          "vLLM refuses the command line", "correct the flag that it names"),
    _Rule("refused-setting", r"\d+ validation errors? for \w*(?:Config|Args)\b",
          "vLLM refuses a setting", "correct the flag that it names"),
)  # fmt: skip
"""Texts that are the cause wherever they stand, the more telling ones first."""

_WEAK_RULES = (
    _Rule("port-in-use", r"[Aa]ddress already in use|EADDRINUSE|port is already allocated",
          "another process has the port", "choose another --port, or stop what listens there"),
    _Rule("model-not-found",
          r"is not a local folder and is not a valid model ident|RepositoryNotFoundError|GatedRepoError|gated repo|"
          r"HFValidationError|Invalid repository ID or local directory|does not appear to have a file named config|"
          r"LocalEntryNotFoundError|We couldn't connect to 'https?://|Can't load the configuration of",
          "the model cannot be loaded",
          "correct the model's name or path, or set HF_TOKEN if its owner asks for a login"),
    _Rule("killed", r"(?:exit code: |'EngineCore\w*': |died with exit code )-(?P<signal>\d+)\b",
          "a process of the server was killed by signal {signal}",
          "see `dmesg` for the kernel's out-of-memory killer, and give the server more host memory"),
)  # fmt: skip
"""Texts that may also be a warning, or follow from something else."""

_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|(?:CUDA|HIP|XPU|NPU)(?: error:)? out of memory|not enough GPU memory|CUBLAS_STATUS_ALLOC_FAILED"
)
_READY = re.compile(r"Application startup complete|Uvicorn running on|Avg prompt throughput|Dumping scheduler output")
_DEAD_ENGINE = re.compile(
    r"EngineDeadError|EngineCore encountered a(?:n issue| fatal error)|[Bb]ackground loop has err"
)

_OOM_STAGES: tuple[tuple[FailureCode, str, str, str], ...] = (
    ("oom-graphs", r"in (?:_?capture\w*|profile_cudagraph_memory)$|in \w*_capture$|torch\.cuda\.graph\(",
     "no memory for the CUDA graphs", "lower --gpu-memory-utilization or --max-num-seqs, or add --enforce-eager"),
    ("oom-sampler", r"in _dummy_(?:sampler|pooler)_run|v1/(?:worker/gpu/)?sample/|layers/sampler\.py",
     "no memory for the sampler's warm-up", "lower --max-num-seqs or --gpu-memory-utilization"),
    ("oom-other", r"in (?:_?allocate_kv_cache\w*|initialize_kv_cache\w*|init_kv_cache|_allocate_kv_cache)$",
     "no memory for the KV cache that was planned", "lower --gpu-memory-utilization"),
    ("oom-weights", r"in (?:_?load_model|load_weights|create_weights|_?initialize_model|get_model)$|Failed to load mod",
     "the weights do not fit the GPU", "raise --tensor-parallel-size, or use --quantization or a smaller model"),
    ("oom-other", r"in (?:profile_run|determine_available_memory|determine_num_available_blocks|_dummy_run)$",
     "no memory for a step of max_num_batched_tokens", "lower --max-num-batched-tokens"),
)  # fmt: skip
"""Functions of vLLM in the traceback above an out-of-memory error, the innermost stage first."""

_PROGRESS = (
    (re.compile(r"Capturing (?:CUDA graph|cudagraph|the model for CUDA)"), 0),
    (re.compile(r"Model loading took|[Ll]oading model weights took|KV cache size|blocks: \d"), None),
    (re.compile(r"Starting to load model|Loading safetensors|Loading weights"), 3),
)
"""The last of these lines says how far the start had come, where there is no traceback; an index of _OOM_STAGES."""


def classify_failure(log_text: str, exit_code: int | None, *, timed_out: bool) -> ServerFailure:
    """Say why a server failed.

    Args:
        log_text: what it wrote, of any version, with colours, process prefixes or as JSON lines.
        exit_code: as `subprocess` gives it (negative for a signal); None when it still runs.
        timed_out: it was given up waiting for.
    """
    lines = log_lines(log_text)
    messages = [message_of(line[:_MAX_CHARACTERS]) for line in lines]
    code, message, remedy = (
        _by_text(messages, _RULES)
        or _by_out_of_memory(messages)
        or _by_text(messages, _WEAK_RULES)
        or _by_dead_engine(messages)
        or _by_exit(exit_code, timed_out=timed_out)
        or ("unknown", _unknown(messages, exit_code), "read the last lines of the log; start it once by hand")
    )
    last_lines = tuple(line for line in lines if line.strip())[-NUM_LAST_LINES:]
    return ServerFailure(code=code, message=message, remedy=remedy, last_lines=last_lines)


def _by_text(messages: list[str], rules: Sequence[_Rule]) -> tuple[FailureCode, str, str] | None:
    is_ready = any(map(_READY.search, messages))
    for rule in rules:
        if is_ready and rule.code in {"port-in-use", "model-not-found"}:
            continue  # it was a warning
        for number, line in enumerate(messages):
            if match := re.search(rule.pattern, line):
                facts = {key: value for key, value in match.groupdict().items() if value}
                if "free" in facts:
                    facts["share"] = _share(float(facts["free"]), float(facts.get("total", "0")))
                words = _exception(messages[number:]) if line.startswith("  File ") else line.split(" [type=")[0]
                return rule.code, _sentence(rule.what.format(**facts), words), rule.remedy.format(**facts)
    return None


def _share(free_gib: float, total_gib: float) -> str:
    return f"{math.floor(100 * free_gib / total_gib) / 100:.2f}" if total_gib else "the share that is free"


def _by_out_of_memory(messages: list[str]) -> tuple[FailureCode, str, str] | None:
    at = next((i for i, line in enumerate(messages) if _OUT_OF_MEMORY.search(line)), None)
    if at is None:
        return None
    before, line = messages[:at], messages[at]
    if any(map(_READY.search, before)):
        what = "out of memory under load"
        return "crash-under-load", _sentence(what, line), "lower --gpu-memory-utilization or --max-num-batched-tokens"
    starts = [i for i, text in enumerate(before) if text.startswith("Traceback (most recent")]
    frames = [text.rstrip() for text in (before[starts[-1] :] if starts else before[-40:])] + [line]
    for code, pattern, what, remedy in _OOM_STAGES:
        if any(re.search(pattern, frame) for frame in frames):
            return code, _sentence(what, line), remedy
    stage = next((stage for text in reversed(before) for seen, stage in _PROGRESS if seen.search(text)), None)
    if stage is not None:
        code, _, what, remedy = _OOM_STAGES[stage]
        return code, _sentence(what, line), remedy
    return "oom-other", _sentence("out of memory at the start", line), "lower --gpu-memory-utilization or the dials"


def _by_dead_engine(messages: list[str]) -> tuple[FailureCode, str, str] | None:
    at = next((i for i, line in enumerate(messages) if _DEAD_ENGINE.search(line)), None)
    if at is None:
        return None
    what = _sentence("the engine died under load", _exception(messages[at:]) or messages[at])
    return (
        "crash-under-load",
        what,
        "lower --max-num-seqs and --max-num-batched-tokens, or report the traceback to vLLM",
    )


def _by_exit(exit_code: int | None, *, timed_out: bool) -> tuple[FailureCode, str, str] | None:
    if timed_out:
        remedy = "allow more time, and start it once by hand: a first start also downloads and compiles"
        return "timeout", "the server did not answer in time", remedy
    number = None if exit_code is None else -exit_code if exit_code < 0 else exit_code - 128
    if number is None or number <= 0 or number not in set(signal.Signals):
        return None
    name = signal.Signals(number).name
    remedy = "see `dmesg` for the kernel's out-of-memory killer, and give the server more host memory"
    if name not in {"SIGKILL", "SIGBUS"}:
        remedy = "see who sent it (a job scheduler, a time limit)"
    if name in {"SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE"}:
        remedy = "see the last lines of the log: a crash in native code, often a driver that does not fit vLLM's torch"
    return "killed", f"the server was ended by {name}", remedy


def _unknown(messages: list[str], exit_code: int | None) -> str:
    ended = "the server failed" if exit_code is None else f"the server ended with exit code {exit_code}"
    return _sentence(ended, _exception(messages))


def _exception(messages: list[str]) -> str:
    """The first exception's own line, passing over those that only report another one."""
    pattern = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception)\b(?!\.\w)(?=:|$)")
    found = [line for line in messages if pattern.match(line)]
    causes = [line for line in found if "EngineDeadError" not in line and "See root cause above" not in line]
    return (causes or found or [""])[0]


def _sentence(what: str, words: str) -> str:
    """Our words and vLLM's, shortened to what a person reads."""
    words = " ".join(words.split())
    return f"{what}: {words[:297]}…" if len(words) > 300 else f"{what}: {words}" if words else what
