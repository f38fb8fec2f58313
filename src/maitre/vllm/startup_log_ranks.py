"""One figure from the lines of many ranks.

Tensor-parallel ranks hold a slice of every token, so their lines repeat one pool. Pipeline ranks each hold some layers
of every token, so the poorest decides. Data-parallel engines have a pool each, so these add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from maitre.vllm.startup_log_lines import Process
from maitre.vllm.startup_log_record import MIN_OF_PP, MIN_OF_TP, ONE_OF_TP, SUM_OF_DP, EngineCache

_ADDED = ("kv_cache_tokens", "num_gpu_blocks", "num_cpu_blocks", "max_concurrency")
BLOCK_SIZES = (16, 1, 8, 32, 64, 128, 256, 512, 1024)
"""What vLLM's platforms and attention backends choose, 16 the most."""


class Observation(NamedTuple):
    """One line's figures and who wrote it."""

    process: Process
    facts: Mapping[str, Any]


class Pool(NamedTuple):
    """The combined figures."""

    totals: dict[str, Any]
    engines: tuple[EngineCache, ...]
    combine_rule: str | None
    notes: tuple[str, ...]


def combine_ranks(seen: Sequence[Observation], flags: Mapping[str, Any]) -> Pool:
    """The pool of the whole deployment.

    Args:
        seen: the lines with figures of the KV pool, in order.
        flags: of the server, as far as they are known.
    """
    rows = [row for row in seen if any(key in row.facts for key in _ADDED)]
    if not rows:
        return Pool({}, (), None, ())
    by_engine: dict[int, list[Observation]] = {}
    tags = {row.process.dp for row in rows if row.process.dp is not None}
    for row in rows:
        if row.process.dp is None and max(tags, default=0) > 0:
            continue  # a worker or the front end repeats what an engine says
        by_engine.setdefault(row.process.dp or 0, []).append(row)
    engines = {number: _of_one_engine(rows) for number, rows in by_engine.items()}
    rule = next((found for rows in by_engine.values() if (found := _rule(rows, flags))), None)
    wanted, notes = int(flags.get("data_parallel_size_local") or flags.get("data_parallel_size") or 1), []
    if not tags and wanted > 1 and flags.get("data_parallel_rank") is None:
        engines, split_note = _split_untagged(rows, wanted, engines)
        notes += [split_note] if split_note else []
    elif 1 < wanted != len(engines):
        notes.append(f"the log shows {len(engines)} of {wanted} data-parallel engines; their pools are added up")
    totals = _added([*engines.values()])
    if len(engines) > 1:
        rule = SUM_OF_DP
    caches = tuple(_cache(number, engine) for number, engine in sorted(engines.items()))
    return Pool(totals, caches, rule, tuple(notes))


def _of_one_engine(rows: Sequence[Observation]) -> dict[str, Any]:
    """The smallest of the ranks' figures; equal ones, which is the rule with tensor parallelism, stay what they are."""
    found: dict[str, Any] = {}
    for key in (*_ADDED, "max_concurrency_at_len"):
        if values := [row.facts[key] for row in rows if key in row.facts]:
            found[key] = min(values)
    return found


def _rule(rows: Sequence[Observation], flags: Mapping[str, Any]) -> str | None:
    """How the lines of one engine became one."""
    values = [
        row.facts[key]
        for key in ("kv_cache_tokens", "num_gpu_blocks", "max_concurrency")
        for row in rows
        if key in row.facts
    ]
    num_lines = max(sum(key in row.facts for row in rows) for key in ("kv_cache_tokens", "num_gpu_blocks", *_ADDED))
    if num_lines < 2 or not values:
        return None
    if len({row.process.pp for row in rows} - {None}) > 1 or (flags.get("pipeline_parallel_size") or 1) > 1:
        return MIN_OF_PP
    is_equal = all(
        len({row.facts[key] for row in rows if key in row.facts}) <= 1 for key in ("kv_cache_tokens", "num_gpu_blocks")
    )
    if is_equal:
        return None if flags.get("tensor_parallel_size") == 1 else ONE_OF_TP
    return MIN_OF_TP if (flags.get("tensor_parallel_size") or 1) > 1 else MIN_OF_PP


def _split_untagged(
    rows: Sequence[Observation], num_engines: int, one: Mapping[int, dict[str, Any]]
) -> tuple[dict[int, dict[str, Any]], str]:
    """Engines whose lines have no tag: as many pools as lines where the numbers agree, else the poorest times them."""
    key = next((key for key in _ADDED if any(key in row.facts for row in rows)), "kv_cache_tokens")
    lines = [row for row in rows if key in row.facts]
    if len(lines) < num_engines:
        return dict(one), f"the log shows {len(lines)} of {num_engines} data-parallel engines"
    if len(lines) == num_engines:
        others = [[row for row in rows if other in row.facts] for other in _ADDED if other != key]
        engines = {i: _of_one_engine([line]) for i, line in enumerate(lines)}
        for column in others:
            for i, row in enumerate(column if len(column) == num_engines else []):
                engines[i] |= _of_one_engine([row])
        return engines, ""
    note = f"the lines do not say which of {num_engines} data-parallel engines wrote them: the poorest counts for each"
    return {i: dict(one[0]) for i in range(num_engines)}, note


def _added(engines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    totals: dict[str, Any] = {}
    for key in _ADDED:
        values = [engine[key] for engine in engines if key in engine]
        if len(values) == len(engines):
            totals[key] = sum(values) if key != "max_concurrency" else round(math.fsum(values), 4)
    lengths = [engine["max_concurrency_at_len"] for engine in engines if "max_concurrency_at_len" in engine]
    return totals | ({"max_concurrency_at_len": min(lengths)} if lengths else {})


def _cache(number: int, engine: Mapping[str, Any]) -> EngineCache:
    return EngineCache(
        engine=number,
        kv_cache_tokens=engine.get("kv_cache_tokens"),
        num_gpu_blocks=engine.get("num_gpu_blocks"),
        max_concurrency=engine.get("max_concurrency"),
    )


def derived_block_size(num_blocks: int, max_concurrency: float, length: int) -> int | None:
    """Tokens in a block, from the blocks and the concurrency that vLLM prints with two decimals; None if unclear.

    A pool of no blocks tells nothing of their size.

    Args:
        num_blocks: of one engine or of all.
        max_concurrency: of the same.
        length: in tokens.
    """
    if not num_blocks:
        return None
    low, high = ((max_concurrency + error) * length / num_blocks for error in (-0.0051, 0.0051))
    slack = 1 + 1 / num_blocks  # from V1 on one block is vLLM's own
    fitting = [size for size in BLOCK_SIZES if low / slack <= size <= high * slack]
    if len(fitting) == 1:
        return fitting[0]
    nearest = round(max_concurrency * length / num_blocks)
    return nearest if not fitting and nearest % 16 == 0 and nearest > 0 and low <= nearest <= high else None
