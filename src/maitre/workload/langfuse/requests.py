"""From observations to a workload: each once, the unusable ones counted by reason, the rest in order of arrival."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from maitre.errors import InputError
from maitre.records import Workload
from maitre.units import format_seconds
from maitre.workload.no_requests import NoRequestsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maitre.workload.langfuse.observation import Observation

_FEW = 0.8
"""Below this share of calls with usage, the rest may be no fair sample; the source line says so."""
_MODELS_TOLD = 5


def build_workload(observations: Iterable[Observation], name: str, source: str) -> Workload:
    """Make a workload of what a source holds.

    A call that counts no output, and did not stream, is kept with one token: vLLM makes at least one. Arrival times
    and latencies are left out only where the source has none; where it has them, a call without is dropped.

    Args:
        observations: model calls, in any order; the last one of an id counts.
        name: the workload's name.
        source: where they come from, in words.

    Raises:
        InputError: there is no observation.
        NoRequestsError: none is a usable request.
    """
    distinct = _distinct(observations)
    if not distinct:
        raise InputError(f"{source}: no generation", "ask for another time window or other filters")
    has_start = any(call.start_us is not None for call in distinct)
    has_end = has_start and any(call.end_us is not None for call in distinct)
    reasons = [_reason(call, has_start=has_start, has_end=has_end) for call in distinct]
    kept = [call for call, reason in zip(distinct, reasons, strict=True) if not reason]
    dropped = dict(Counter(reason for reason in reasons if reason))
    if not kept:
        told = ", ".join(f"{count} × {reason}" for reason, count in dropped.items())
        message = f"{source}: no generation is a usable request ({told})"
        hint = "streamed calls carry usage only with stream_options.include_usage; see docs/langfuse.md"
        raise NoRequestsError(message, hint, source=source, num_dropped=dropped)
    kept.sort(key=lambda call: call.start_us or 0)
    all_streamed = has_start and all(call.ttft_s is not None for call in kept)
    starts_us = np.array([call.start_us or 0 for call in kept], dtype=np.int64)
    return Workload(
        name=name,
        source=f"{source}: {_describe(kept, distinct)}",
        prompt_tokens=[call.prompt_tokens for call in kept],
        output_tokens=[call.output_tokens or 1 for call in kept],
        arrival_s=(starts_us - starts_us[0]) / 1e6 if has_start else None,
        latency_s=[((call.end_us or 0) - (call.start_us or 0)) / 1e6 for call in kept] if has_end else None,
        ttft_s=[call.ttft_s or 0.0 for call in kept] if all_streamed else None,
        num_dropped=dropped,
    )


def _distinct(observations: Iterable[Observation]) -> list[Observation]:
    """Each id once (windows and export files overlap); observations without an id are all different."""
    by_id: dict[str | int, Observation] = {}
    for position, call in enumerate(observations):
        by_id[call.id or position] = call
    return list(by_id.values())


def _reason(call: Observation, *, has_start: bool, has_end: bool) -> str:
    if call.reason:
        return call.reason
    if has_start and call.start_us is None:
        return "start time missing"
    if has_end and call.end_us is None:
        return "unfinished (end time missing)"
    if call.start_us is not None and call.end_us is not None and call.end_us < call.start_us:
        return "end before start"
    return ""


def _describe(kept: Sequence[Observation], distinct: Sequence[Observation]) -> str:
    parts = [f"{len(distinct):,} generation{'' if len(distinct) == 1 else 's'}"]
    num_counted = sum("usage missing" not in call.reason for call in distinct)
    if num_counted < len(distinct):
        biased = "; lengths may be biased" if num_counted < _FEW * len(distinct) else ""
        parts.append(f"{num_counted / len(distinct):.1%} of them with usage{biased}")
    cached, prompt = sum(call.cached_tokens for call in kept), sum(call.prompt_tokens for call in kept)
    parts += [f"{cached / prompt:.1%} of the prompt tokens from a cache"] if cached else []
    num_without = sum(not call.output_tokens for call in kept)
    parts += [f"{num_without:,} without a counted output taken as one token"] if num_without else []
    return ", ".join(parts + _describe_ttft(kept) + _describe_models(kept))


def _describe_ttft(kept: Sequence[Observation]) -> list[str]:
    known = [call.ttft_s for call in kept if call.ttft_s is not None]
    if not known:
        return []
    p50, p95 = (format_seconds(float(seconds)) for seconds in np.percentile(known, [50, 95]))
    return [f"first token after {p50} (p50), {p95} (p95) where told ({len(known) / len(kept):.0%})"]


def _describe_models(kept: Sequence[Observation]) -> list[str]:
    models = Counter(call.model or "unnamed" for call in kept).most_common()
    if len(models) == 1:
        return [] if models[0][0] == "unnamed" else [f"model {models[0][0]}"]
    told = ", ".join(f"{model} {count:,}" for model, count in models[:_MODELS_TOLD])
    rest = f" and {len(models) - _MODELS_TOLD} more" if len(models) > _MODELS_TOLD else ""
    return [f"models {told}{rest}"]
