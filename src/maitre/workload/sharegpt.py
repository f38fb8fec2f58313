"""ShareGPT-like conversations whose turns carry their lengths in tokens: one request for each answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import polars as pl

from maitre.errors import InputError
from maitre.workload.columns import PROMPT_NAMES, spelling
from maitre.workload.json_rows import MAX_BUILT_BYTES, json_lines
from maitre.workload.tables import Table, frame_table

_HEAD_BYTES = 1 << 16
_TURNS = ("conversations", "conversation")
_ANSWERERS = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
_MAX_COUNT = 2**63 - 1
"""What a column holds; far below it a length is no length any more, and its request is dropped and counted."""
_LENGTH_NAMES = ("tokens", "numtokens", "tokencount", "ntokens", "tokenlen", "tokenlength", "length", "len")


def looks_like_sharegpt(content: bytes, source: str) -> bool:
    """Whether a JSON text holds conversations, and no lengths beside them that a table would read.

    Raises:
        InputError: broken JSON.
    """
    head = content[:_HEAD_BYTES]
    if not any(f'"{name}"'.encode() in head for name in _TURNS):
        return False
    first = json_lines(content, source).partition(b"\n")[0]
    if len(first) > MAX_BUILT_BYTES:
        return False
    try:
        record = msgspec.json.decode(first)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return (
        isinstance(record, dict) and bool(_turns(record)) and not any(spelling(name) in PROMPT_NAMES for name in record)
    )


def open_sharegpt(content: bytes, source: str) -> Table:
    """Read one request for each answer; its prompt is all that was said before.

    Args:
        content: UTF-8 JSON: conversations as a list or a line each.
        source: the file's name in error messages.

    Raises:
        InputError: broken JSON, or texts without lengths.
    """
    prompts: list[int | None] = []
    outputs: list[int | None] = []
    num_conversations = 0
    for record in _records(content, source):
        num_conversations += 1
        said: int | None = 0
        for turn in _turns(record):
            length = _length(turn)
            if str(turn.get("from", turn.get("role", ""))).lower() in _ANSWERERS:
                prompts.append(said)
                outputs.append(length)
            said = None if said is None or length is None else min(said + length, _MAX_COUNT)
    if prompts and all(output is None for output in outputs):
        hint = 'add the number of tokens to every turn, as in {"from": "gpt", "value": "…", "num_tokens": 87}'
        raise InputError(f"{source}: conversations without lengths; their texts are not tokenised here", hint)
    frame = pl.DataFrame(
        {"prompt_tokens": prompts, "output_tokens": outputs},
        schema={"prompt_tokens": pl.Int64, "output_tokens": pl.Int64},
    )
    return frame_table(source, frame, f"{num_conversations:,} ShareGPT conversations, one request an answer")


def _records(content: bytes, source: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(json_lines(content, source).split(b"\n"), 1):
        if line.strip():
            if len(line) > MAX_BUILT_BYTES:
                raise InputError(f"{source}, row {number}: longer than {MAX_BUILT_BYTES >> 20} MiB", "split it")
            try:
                record = msgspec.json.decode(line)
            except (msgspec.MsgspecError, RecursionError):
                raise InputError(f"{source}, row {number}: not valid JSON", "write the file again") from None
            if isinstance(record, dict):
                yield record


def _turns(record: dict[str, Any]) -> list[dict[str, Any]]:
    value = next((record[name] for name in _TURNS if name in record), None)
    return [turn for turn in value if isinstance(turn, dict)] if isinstance(value, list) else []


def _length(turn: dict[str, Any]) -> int | None:
    """The turn's length in tokens; None when it has none."""
    values = {spelling(name): value for name, value in turn.items()}
    value = next((values[name] for name in _LENGTH_NAMES if name in values), None)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT else None
