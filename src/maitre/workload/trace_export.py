"""A workload in the trace formats of load generators, so that they replay the same traffic."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

from maitre.errors import UsageError
from maitre.records import Workload

MOONCAKE_BLOCK_TOKENS = 512
"""Tokens in one chunk of Mooncake's `hash_ids` (its README), used where a workload has no prefixes of its own."""

MAX_HASHES = 20_000_000
"""In one trace: about 200 MB of text, which is built in memory."""


class _Row(NamedTuple):
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    known: tuple[int, ...]
    """Hashes of the prompt's first chunks, as the workload has them …"""
    fresh: range
    """… and of the others, which no other prompt has."""


class _TraceFormat(NamedTuple):
    row: Callable[[_Row], dict[str, object]]
    how: str
    """How the tool replays the file, with {path}, {block_tokens} and {num_requests} to fill in."""


def _mooncake(row: _Row) -> dict[str, object]:
    return {
        "timestamp": round(row.arrival_s * 1000),
        "input_length": row.prompt_tokens,
        "output_length": row.output_tokens,
        "hash_ids": [*row.known, *row.fresh],
    }


def _seconds(row: _Row) -> dict[str, object]:
    return {"timestamp": row.arrival_s, "input_length": row.prompt_tokens, "output_length": row.output_tokens}


# vLLM (vllm/benchmarks, 0.29 to 0.33): timed_trace takes seconds and chunks of 16 and 1000 rows unless told otherwise.
# guidellm 0.8.1: trace_synthetic takes seconds. aiperf 0.13: mooncake_trace takes milliseconds.
_FORMATS = {
    "mooncake": _TraceFormat(_mooncake, "times in ms, one hash for {block_tokens} tokens"),
    "vllm-bench": _TraceFormat(
        _mooncake,
        "vllm bench serve --dataset-name timed_trace --dataset-path {path} --timed-trace-sec-multiplier 0.001 "
        "--timed-trace-chunk-hash-size {block_tokens} --num-prompts {num_requests} --backend vllm",
    ),
    "guidellm": _TraceFormat(_seconds, "guidellm: data of kind trace_synthetic at {path}, profile replay"),
    "aiperf": _TraceFormat(_mooncake, "aiperf: format mooncake_trace, file {path}, phase fixed_schedule"),
}
TRACE_FORMATS = tuple(_FORMATS)
"""The tools whose format is known; mooncake is the one that most others read too."""


def export_trace(workload: Workload, tool: str, path: str) -> tuple[str, str]:
    """Write a workload as JSON lines for a load generator.

    Args:
        workload: n requests, in order of arrival.
        tool: one of `TRACE_FORMATS`.
        path: what the file will be called, for the words.

    Returns:
        The lines, and how the tool replays them.

    Raises:
        UsageError: no such tool, no arrival times to replay, or more than `MAX_HASHES` chunks.
    """
    if tool not in _FORMATS:
        raise UsageError(f"no trace format '{tool}'", f"write one of {', '.join(_FORMATS)}")
    chosen = _FORMATS[tool]
    num_hashes = int((-(-workload.prompt_tokens // _block_tokens(workload))).sum())
    if chosen.row is _mooncake and num_hashes > MAX_HASHES:
        raise UsageError(
            f"a trace with {num_hashes:,} hashes, one for {_block_tokens(workload)} tokens of a prompt, is too large",
            f"take fewer requests with --num-requests: {MAX_HASHES:,} hashes fit",
        )
    lines = "".join(json.dumps(chosen.row(row)) + "\n" for row in _rows(workload))
    return lines, chosen.how.format(path=path, block_tokens=_block_tokens(workload), num_requests=workload.num_requests)


def _block_tokens(workload: Workload) -> int:
    return workload.prefix_block_tokens or MOONCAKE_BLOCK_TOKENS


def _rows(workload: Workload) -> Iterator[_Row]:
    """Every request with as many hashes as its prompt has chunks: vLLM makes an empty prompt of a row without any."""
    if workload.arrival_s is None:
        raise UsageError("a trace needs arrival times, and this workload has none", "name a source with times")
    size, hashes = _block_tokens(workload), workload.prefix_hashes
    fresh = 1 + max((value for row in hashes or () for value in row), default=-1)
    lengths = zip(workload.prompt_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
    for number, (arrival_s, (prompt, output)) in enumerate(zip(workload.arrival_s.tolist(), lengths, strict=True)):
        num_chunks = -(-prompt // size)
        known = hashes[number][:num_chunks] if hashes else ()
        num_fresh = num_chunks - len(known)
        yield _Row(arrival_s, prompt, output, known, range(fresh, fresh + num_fresh))
        fresh += num_fresh
