"""One observation of Langfuse, from the API (camelCase) or an export (camelCase or snake_case): what a workload needs.

Prompt and answer texts are never kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maitre.workload.langfuse.fields import field, model_of, time_us
from maitre.workload.langfuse.usage import UnusableUsageError, read_usage

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Observation:
    """One call of a model as Langfuse recorded it."""

    id: str
    model: str
    """As the client named it; empty when it did not."""
    start_us: int | None
    """Microseconds since 1970; Langfuse itself keeps milliseconds."""
    end_us: int | None
    ttft_s: float | None
    """First token after the start, where the client told when it came."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    """0 when the usage counts no output."""
    reason: str
    """Why this is no usable request; empty when it is one."""


def read_observation(row: Mapping[str, Any]) -> Observation:
    """Read an observation of type GENERATION; what is wrong with it becomes its `reason`."""
    start_us, end_us = time_us(row, "startTime", "start_time"), time_us(row, "endTime", "end_time")
    first_us = time_us(row, "completionStartTime", "completion_start_time")
    prompt = cached = output = 0
    reason = "failed (level ERROR)" if field(row, "level") == "ERROR" else ""
    if not reason:
        try:
            prompt, cached, counted = read_usage(row)
            output = counted or 0
        except UnusableUsageError as error:
            reason = str(error)
    if not reason and not output and first_us is not None:  # it streamed, so there was an answer
        reason = "output usage missing"
    return Observation(
        id=str(field(row, "id") or ""),
        model=model_of(row),
        start_us=start_us,
        end_us=end_us,
        ttft_s=_ttft_s(start_us, first_us, end_us),
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        reason=reason,
    )


def _ttft_s(start_us: int | None, first_us: int | None, end_us: int | None) -> float | None:
    if start_us is None or first_us is None or first_us < start_us or (end_us is not None and first_us > end_us):
        return None
    return (first_us - start_us) / 1e6
