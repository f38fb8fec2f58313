"""Token counts of one generation, from the spellings of usage that Langfuse stores and exports.

Langfuse's `usageDetails` holds buckets that exclude each other: `input` is what was not cached, and the prompt is the
sum of all keys that contain "input" (langfuse 4.16: `transformDbToApiObservation`). Clients that write usage themselves
often put the whole prompt into `input` and the cached part beside it; `total` then tells, because it is too small.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from maitre.workload.lengths import MAX_TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = ("usageDetails", "usage_details", "usage")
_SUMS = (("inputUsage", "outputUsage"), ("promptTokens", "completionTokens"), ("prompt_tokens", "completion_tokens"))
_PROMPT = frozenset({"prompt", "prompttokens"})
_COMPLETION = frozenset({"completion", "completiontokens"})


class Usage(NamedTuple):
    """Tokens of one generation."""

    prompt_tokens: int
    """All of the prompt, cached or not."""
    cached_tokens: int
    """The part of the prompt that a cache answered."""
    output_tokens: int | None
    """None when no output is counted."""


class UnusableUsageError(ValueError):
    """Why a generation has no usable token counts, in the words of a drop reason."""


def read_usage(row: Mapping[str, Any]) -> Usage:
    """Read the usage of one observation.

    Args:
        row: an observation; objects may be JSON text, as in CSV, or lists of key and value, as in Parquet.

    Raises:
        UnusableUsageError: the usage is missing, is not in tokens, or is no number of tokens.
    """
    unit = _object(row.get("usage")).get("unit") or row.get("unit")
    if unit not in (None, "", "TOKENS"):
        raise UnusableUsageError("usage not in tokens")
    for name in _NAMES:
        counts = _counts(_object(row.get(name)))
        if any(counts.values()):
            return _split(counts)
    for names in _SUMS:
        counts = _counts({side: row.get(name) for side, name in zip(("input", "output"), names, strict=True)})
        if any(counts.values()):
            return _split(counts)
    raise UnusableUsageError("usage missing")


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise UnusableUsageError("usage unreadable") from None
    if isinstance(value, list) and all(map(_is_pair, value)):
        return {item["key"]: item["value"] for item in value}
    return value if isinstance(value, dict) else {}


def _is_pair(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("key"), str) and "value" in item


def _counts(usage: Mapping[str, Any]) -> dict[str, int]:
    """The token counts by lower-case key; costs, units and nested details (parts of other keys) are left out."""
    counts: dict[str, int] = {}
    for name, value in usage.items():
        key = name.lower()
        if value in {None, ""} if isinstance(value, str | None) else isinstance(value, dict | list):
            continue
        if key != "unit" and "cost" not in key and "price" not in key:
            counts[key] = _count(value)
    return counts


def _count(value: Any) -> int:
    try:
        number = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        raise UnusableUsageError("usage not a number") from None
    except OverflowError:  # a whole number of more than 308 digits
        raise UnusableUsageError("usage over 10 million" if value > 0 else "usage negative") from None
    if not number <= MAX_TOKENS:
        raise UnusableUsageError("usage over 10 million" if number > MAX_TOKENS else "usage not a number")
    if number < 0 or not number.is_integer():
        raise UnusableUsageError("usage negative" if number < 0 else "usage not whole")
    return int(number)


def _split(counts: Mapping[str, int]) -> Usage:
    inputs = {key: count for key, count in counts.items() if "input" in key}
    outputs = {key: count for key, count in counts.items() if "output" in key}
    inputs = inputs or {key: count for key, count in counts.items() if key.replace("_", "") in _PROMPT}
    outputs = outputs or {key: count for key, count in counts.items() if key.replace("_", "") in _COMPLETION}
    cached = sum(count for key, count in inputs.items() if _is_cache_read(key))
    total = counts.get("total") or counts.get("totaltokens") or counts.get("total_tokens")
    prompt, output = _without_parts(inputs, outputs, cached, total)
    if not prompt:
        raise UnusableUsageError("prompt usage missing" if not inputs else "prompt usage zero")
    return Usage(prompt, min(cached, prompt), output or None)


def _without_parts(
    inputs: Mapping[str, int], outputs: Mapping[str, int], cached: int, total: int | None
) -> tuple[int, int]:
    """Prompt and output tokens, each once: parts that the client had counted in the whole already are left out."""
    prompt, output = sum(inputs.values()), sum(outputs.values())
    whole = prompt - cached
    if not output and cached and cached <= whole:
        # A total without an output is no proof. Every OpenTelemetry and OpenAI client counts the cached part inside.
        return whole, output
    written = sum(count for key, count in inputs.items() if "cach" in key and not _is_cache_read(key))
    reasoning = sum(count for key, count in outputs.items() if "reasoning" in key)
    excess = prompt + output - total if total else 0
    for input_parts in (cached, cached + written, 0):
        for output_parts in (0, reasoning):
            if excess > 0 and excess == input_parts + output_parts:
                return prompt - input_parts, output - output_parts
    return prompt, output


def _is_cache_read(key: str) -> bool:
    return "cach" in key and "creat" not in key and "writ" not in key
