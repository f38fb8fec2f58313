"""VLLM's periodic statistics line, in the wording of every version.

Written each 5 s (V0) or 10 s (V1) of activity by the API server (`engine/metrics.py` in V0, `v1/metrics/loggers.py`):
pairs of words and a number, of which versions add, drop and move some. Read by the words, never by their place.

V0          Running, Swapped, Pending, GPU and CPU KV cache usage; the hit rate in a line of its own
0.7.3       Running, Waiting, KV cache usage, hit rate; from 0.8.5 with `Engine 000: ` before them
0.11.1      Preemptions (in the interval, only if any); `2 Engines Aggregated: `, whose KV usage is their mean
0.20        Deferred, which Waiting includes; 0.30: the device's name before the KV usage; 0.32: KV fetch
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

MARK = "Avg prompt throughput: "
"""In every such line."""

_HEAD = (
    r"(?:\([^()]{0,80}\bpid=\d+[^()]{0,80}\)\s*)?"
    r"(?:DEBUG|INFO|WARNING):?\s+\d\d-\d\d \d\d:\d\d:\d\d \[?[^\s\]]+:\d+\]\s*"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S* - [\w.]+ - [A-Z]+ - "
)
_MAX_HEAD = 300
"""Characters in which another logger's head may stand before the words."""
_BEGINS = re.compile(rf"(?:{_HEAD})?(?:Engine \d+: |\d+ Engines Aggregated: )?{MARK}")
_ENGINE = re.compile(r"Engine (\d{1,6}): |(\d{1,6}) Engines Aggregated: ")
_PAIR = re.compile(r"([A-Za-z][A-Za-z ]*): (-?[\d.]+|nan)(%?)")
_KV_FETCH = re.compile(r"KV fetch: (\d{1,15}) waiting to start, (\d{1,15}) in progress, (\d{1,15}) completed")
_USAGE = "KV cache usage"
_V0_HIT_RATE = re.compile(r"Prefix cache hit rate: GPU: (-?[\d.]+)%")
_CUMULATED = re.compile(r"total_num_cumulative_preemption=(\d{1,15})\b")
_MAX_VALUE = 1e15
"""More than any server counts; a longer number is a torn line."""


@dataclass(frozen=True, slots=True)
class StatsLine:
    """What one line says. None: it does not."""

    engine: str
    """The number; empty where the line has none, or speaks of several."""
    num_engines: int | None
    """How many engines it sums up, where it speaks of several."""
    prompt_tokens_per_s: float | None
    """Since the line before; from 0.16 on only tokens that were computed."""
    generation_tokens_per_s: float | None
    num_running: float | None
    num_waiting: float | None
    """V0 says pending; from 0.20 on with those that are deferred."""
    num_swapped: float | None
    num_deferred: float | None
    num_kv_fetch: float | None
    """Requests whose KV blocks come from elsewhere (0.32 and later)."""
    num_preemptions: float | None
    """Since the line before. Not written when there were none, nor by versions before 0.11.1, nor by those that set the
    count back before they write it: 0.32.0 wrote nothing of 46 (vLLM pull request 38452)."""
    kv_usage: float | None
    """0 to 1; of several engines the mean."""
    prefix_hit_rate: float | None
    """0 to 1. V1: over the last 1,000 requests (`v1/metrics/stats.py`)."""
    external_hit_rate: float | None
    mm_hit_rate: float | None


def parse_stats(message: str) -> StatsLine | None:
    """Read a message; None if it is no statistics line.

    Args:
        message: without time, level and place; what runs on after the first line is passed over.
    """
    text = _one_line(message)
    if text is None:
        return None
    values = _pairs(text[text.index(MARK) :])
    engine = _ENGINE.search(text, 0, text.index(MARK))
    fetched = _KV_FETCH.search(text)
    return StatsLine(
        engine=str(int(engine[1])) if engine and engine[1] else "",
        num_engines=int(engine[2]) if engine and engine[2] else None,
        prompt_tokens_per_s=_known(values, "Avg prompt throughput"),
        generation_tokens_per_s=_known(values, "Avg generation throughput"),
        num_running=_known(values, "Running"),
        num_waiting=_known(values, "Waiting", "Pending"),
        num_swapped=_known(values, "Swapped"),
        num_deferred=_known(values, "Deferred"),
        num_kv_fetch=float(sum(map(int, fetched.groups()))) if fetched else None,
        num_preemptions=_known(values, "Preemptions"),
        kv_usage=_known(values, _USAGE),
        prefix_hit_rate=_known(values, "Prefix cache hit rate"),
        external_hit_rate=_known(values, "External prefix cache hit rate"),
        mm_hit_rate=_known(values, "MM cache hit rate"),
    )


def _one_line(message: str) -> str | None:
    """From the engine's number on, up to where another line begins."""
    begins = _BEGINS.search(message) if MARK in message else None
    if begins is None or begins.start() > _MAX_HEAD:
        return None
    following = _BEGINS.search(message, begins.end())
    return message[begins.start() : following.start() if following else len(message)]


def _pairs(text: str) -> dict[str, float]:
    """The number after each word; of two usages, as in V0, the first is the GPU's."""
    values: dict[str, float] = {}
    for words, number, percent in _PAIR.findall(text):
        key = _USAGE if words.endswith(_USAGE) else words
        values.setdefault(key, round(_number(number) / 100, 6) if percent else _number(number))
    return values


def split_stats(text: str) -> Iterator[str]:
    """A physical line, cut where further statistics lines begin in it: writers without a lock run them together."""
    starts = [match.start() for match in _BEGINS.finditer(text)][1:] if text.count(MARK) > 1 else []
    yield from (text[start:end] for start, end in zip([0, *starts], [*starts, len(text)], strict=True))


def parse_v0_hit_rate(message: str) -> float | None:
    """The GPU's prefix-cache hit rate, 0 to 1, in the line that V0 writes after the statistics (0.5.5 to 0.10.2)."""
    match = _V0_HIT_RATE.search(message)
    return round(_number(match[1]) / 100, 6) if match and _number(match[1]) >= 0 else None


def parse_v0_preemptions(message: str) -> int | None:
    """Preemptions so far by V0's warning, which is written at the 1st, the 51st, the 101st: a lower bound."""
    match = _CUMULATED.search(message)
    return int(match[1]) if match and "is preempted by" in message else None


def _known(values: dict[str, float], *words: str) -> float | None:
    return next((values[word] for word in words if values.get(word, math.nan) >= 0), None)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if abs(value) < _MAX_VALUE else math.nan
