"""Shared prompt prefixes: reading a trace's block hashes, and how much of the prompts a prefix cache could answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from maitre.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import polars as pl
    from numpy.typing import NDArray

    from maitre.records import Workload

BLOCK_TOKENS = (512, 16, 64, 128, 256, 32)
"""Chunk sizes that public traces hash by: Mooncake 512, Qwen-Bailian 16, then vLLM's other block sizes."""


def read_hashes(column: pl.Series, source: str) -> tuple[tuple[int, ...], ...]:
    """Read each row's list of hashes from JSON text or a list column; a row without one gives ().

    Raises:
        InputError: a row holds something else than a list of whole numbers.
    """
    try:
        return _decode_all(column) or tuple(_hashes_of(value) for value in column)
    except (ValueError, TypeError, RecursionError):
        row = next(number for number, value in enumerate(column, 1) if not _is_hashes(value))
        where = f"{source}, column '{column.name}', row {row}"
        raise InputError(f"{where}: a list of whole numbers was expected", "write it as [0, 1, 2]") from None


def infer_block_tokens(hashes: Iterable[tuple[int, ...]], prompt_tokens: NDArray[np.int64]) -> int | None:
    """The chunk size with which ⌈prompt tokens / size⌉ hashes make up (nearly) every prompt; None when none does."""
    counts = np.array([len(row) for row in hashes])
    rows = counts > 0
    for size in BLOCK_TOKENS:
        if rows.any() and np.mean(-(-prompt_tokens[rows] // size) == counts[rows]) >= 0.95:
            return size
    return None


def shared_prefix_share(workload: Workload) -> float | None:
    """Share of all prompt tokens that an endless prefix cache would answer, requests in order of arrival.

    A hash counts as shared when an earlier request had the same hashes up to it. The last prompt token never counts:
    vLLM computes at least one token of every prompt (v1/core/kv_cache_manager.py `get_computed_blocks`).

    Returns:
        0 to 1, or None for a workload without hashes.
    """
    if workload.prefix_hashes is None or workload.prefix_block_tokens is None:
        return None
    blocks = _shared_blocks(workload.prefix_hashes)
    cached = np.minimum(blocks * workload.prefix_block_tokens, workload.prompt_tokens - 1)
    return float(cached.sum() / workload.prompt_tokens.sum())


def _shared_blocks(prefix_hashes: Iterable[tuple[int, ...]]) -> NDArray[np.int64]:
    """How many leading chunks of each prompt were seen before; the chunks seen are kept as a tree."""
    children: dict[tuple[int, int], int] = {}
    blocks = []
    for hashes in prefix_hashes:
        node, num_shared = 0, 0
        for value in hashes:
            num_nodes = len(children) + 1
            child = children.setdefault((node, value), num_nodes)
            num_shared += child != num_nodes
            node = child
        blocks.append(num_shared)
    return np.array(blocks, dtype=np.int64)


def _decode_all(column: pl.Series) -> tuple[tuple[int, ...], ...] | None:
    """The fast way for text: all rows as one JSON list; None when a row is no list of whole numbers."""
    if str(column.dtype) != "String":
        return None
    text = column.fill_null("[]").replace("", "[]")
    if not text.str.starts_with("[").all():
        return None
    try:
        rows = msgspec.json.decode("[" + ",".join(text.to_list()) + "]", type=tuple[tuple[int, ...], ...])
    except (msgspec.MsgspecError, RecursionError):
        return None
    return rows if len(rows) == len(column) else None


def _hashes_of(value: object) -> tuple[int, ...]:
    items = json.loads(value) if isinstance(value, str) and value.strip() else value
    if items is None or items == "":
        return ()
    hashes = tuple(items)  # type: ignore[arg-type]  # what is no sequence raises TypeError
    if not all(type(item) is int for item in hashes):
        raise ValueError(value)
    return hashes


def _is_hashes(value: object) -> bool:
    try:
        _hashes_of(value)
    except (ValueError, TypeError, RecursionError):
        return False
    return True
