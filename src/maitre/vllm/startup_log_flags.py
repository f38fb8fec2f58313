"""The flags of a server, from whatever its log shows of them: command line, argument dump, configuration, own lines.

The two dials appear at INFO only where the user set them (the argument dump, 0.4 to 0.33), and as the token budget of
the chunked-prefill line (0.5.3 on); a default that is printed nowhere stays unknown.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from maitre.errors import UsageError
from maitre.units import parse_token_count

Flags = dict[str, Any]

_NUMBERS = (
    "max_num_seqs", "max_num_batched_tokens", "max_model_len", "tensor_parallel_size", "pipeline_parallel_size",
    "data_parallel_size", "data_parallel_size_local", "data_parallel_rank", "block_size", "num_gpu_blocks_override",
    "kv_cache_memory_bytes",
)  # fmt: skip
_SHARES = ("gpu_memory_utilization",)
_WORDS = ("kv_cache_dtype", "dtype", "quantization", "model")
_SWITCHES = (
    "enable_chunked_prefill", "enable_prefix_caching", "enforce_eager", "disable_hybrid_kv_cache_manager",
    "enable_lora",
)  # fmt: skip
_UNABBREVIATED = ("max_num_active_seqs", "max_num_scheduled_tokens", "max_loras", "api_server_count")
"""Read by their whole names only: most are newer than the flags whose abbreviations they would make ambiguous."""
_KNOWN = (*_NUMBERS, *_SHARES, *_WORDS, *_SWITCHES)
_SHORT = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size", "q": "quantization"}

_COMMAND = re.compile(
    r"\s*(?:\S{0,80}[$#%>+]\s+|(?:[Cc]ommand|CMD|[Rr]unning|[Ee]xecuting)(?: command)?\s*[:=]?\s+){0,3}[\"'\[]*"
    r"(?:[A-Z_][A-Z0-9_]{0,80}=\S*\s+)*(?:(?:exec|sudo|nohup|env|time)\s+)*"
    r"(?:(?:\S{0,200}/)?python[\d.]*\s+(?:-[a-zA-Z]\s+)*-m\s+vllm\.entrypoints\.|(?:\S{0,200}/)?vllm\s+(?:serve|bench)\s+\S|"
    r"(?:docker|podman|nerdctl)\s+run\b.*\bvllm)"
)
_LISTED = re.compile(r"[\"'],\s*[\"']")
_BLANKED = str.maketrans("\"'[]", "    ")
_USAGE = re.compile(r"^\s*(?:usage:|.*\berror: )|vllm serve \[|Received request")
_IMAGE = re.compile(r"vllm[\w./-]*:v?(?P<version>\d+\.\d+\.\d+\S*)")
_DUMP = re.compile(r"(?:non-default )?args: |Namespace\(")
_CONFIG = re.compile(r"Initializing (?:a V1|an|a V0)? ?LLM engine \(v(?P<version>[^)\s]+)\) with config: ")
_NESTED = re.compile(r"(?<=[:=])\s?\{[^{}]*\}")
_MAX_NESTING = 4
_ENTRY = re.compile(
    rf"(?<![\w'-])(?P<quote>'?)(?P<key>{'|'.join((*_KNOWN, *_UNABBREVIATED, 'max_seq_len'))})(?P=quote)(?::\s*|=)"
    r"(?P<value>'[^']*'|[^,)}\]\s]+)"
)
_VERSION = re.compile(r"vLLM (?:API )?server version (?P<version>\d[^\s,]*)|█\s+version (?P<version2>\d\S*)")
_IN_FORCE = re.compile(
    r"(?:Chunked prefill is enabled with max_num_batched_tokens=|Raising max_num_batched_tokens from \d+ to |"
    r"(?:Defaulting|Setting) max_num_batched_tokens to )(?P<max_num_batched_tokens>\d+)|"
    r"(?:Defaulting|Setting) max_num_seqs to (?P<max_num_seqs>\d+)|"
    r"Overriding num_gpu_blocks=\S+ with num_gpu_blocks_override=(?P<num_gpu_blocks_override>\d+)|"
    r"max_num_batched_tokens \((?P<tokens2>\d+)\) (?:exceeds|must be|is smaller)"
)

_ANCHORS = re.compile(r"LLM engine|_override|args: |Namespace\(|max_num_|version|vllm")

COMMAND, DUMP, CONFIG, IN_FORCE = 1, 2, 3, 4
"""Where a flag was seen; of two values the one from the higher place counts."""


def flags_in(message: str) -> tuple[int, Flags]:
    """The place and the flags of one message; (0, {}) for most.

    Args:
        message: without prefix, colours and level; a command line with its continuation lines joined.
    """
    if not _ANCHORS.search(message):
        return 0, {}
    if match := _CONFIG.search(message):
        flags = _entries(message)
        if "max_seq_len" in flags:
            flags["max_model_len"] = flags.pop("max_seq_len")
        return CONFIG, flags | {"version": match["version"]}
    if _DUMP.match(message):
        return DUMP, _entries(message)
    if match := _IN_FORCE.search(message[:400]):
        found = {key: int(text) for key, text in match.groupdict().items() if text and len(text) < 12}
        if "tokens2" in found:
            found["max_num_batched_tokens"] = found.pop("tokens2")
        return IN_FORCE, found
    if match := _VERSION.search(message[:400]):
        return IN_FORCE, {"version": match["version"] or match["version2"]}
    return (COMMAND, command_flags(message)) if is_command(message) else (0, {})


def is_command(message: str) -> bool:
    """Whether a line is the command that starts a server, as scripts echo it and people paste it."""
    return "vllm" in message and bool(_COMMAND.match(_spelled(message[:4000]))) and not _USAGE.search(message[:400])


def _spelled(command: str) -> str:
    """A command that is written as a list, in YAML or JSON, as one is typed."""
    if not _LISTED.search(command):
        return command
    return _LISTED.sub(" ", command).translate(_BLANKED).strip()


def command_flags(command: str) -> Flags:
    """The flags of a command line; hyphens or underscores, abbreviated as argparse allows it."""
    command = _spelled(command)
    try:
        words = shlex.split(command, comments=False)
    except ValueError:
        words = command.split()
    flags: Flags = {}
    if image := _IMAGE.search(command):
        flags["version"] = image["version"]
    for i, word in enumerate(words):
        if not word.startswith("-") or word == "--":
            if i and words[i - 1] == "serve":
                flags["model"] = word
            continue
        name, _, value = word.lstrip("-").partition("=")
        negated = name.replace("_", "-").startswith("no-")
        key = _known(name[3:] if negated else name)
        if key in _SWITCHES:
            flags[key] = not negated
        elif key is not None and (read := _value(key, value or (words[i + 1] if i + 1 < len(words) else ""))):
            flags[key] = read
    return flags


def _known(name: str) -> str | None:
    name = name.replace("-", "_")
    if name in (*_KNOWN, *_UNABBREVIATED) or name in _SHORT:
        return _SHORT.get(name, name)
    if name == "kv_cache_memory":
        return "kv_cache_memory_bytes"
    found = [key for key in _KNOWN if len(name) > 5 and key.startswith(name) and not key.endswith("_local")]
    return found[0] if len(found) == 1 else None


def _entries(message: str) -> Flags:
    """`key=value` and `'key': value` of a dump or a configuration, not of what is nested in it; None is not given."""
    flags: Flags = {}
    body = message.partition(": {")[2] or message
    for _ in range(_MAX_NESTING):
        body = _NESTED.sub("None", body)
    for match in _ENTRY.finditer(body):
        key, text = match["key"], match["value"]
        value = _value("max_model_len" if key == "max_seq_len" else key, text.strip("'"))
        if value is not None and key not in flags:
            flags[key] = value
    return flags


def _value(key: str, text: str) -> Any:
    if text in {"None", "auto", "-1", ""}:
        return None
    if key in _SWITCHES:
        return {"True": True, "False": False}.get(text)
    if key in _WORDS:
        return text.removeprefix("torch.")
    if key in _SHARES:
        return _share(text)
    try:
        return parse_token_count(text) if not text.isdecimal() else int(text[:15])
    except UsageError:
        return None


def _share(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 1 else None
