"""Spans of a trace: which of them are model calls, each call once, as rows of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import polars as pl

from maitre.errors import InputError
from maitre.workload.row_rules import NO_MODEL_CALL
from maitre.workload.tables import Table, frame_table

# Newest spelling first. OpenTelemetry semantic conventions: input_tokens since 1.27, prompt_tokens before, and still in
# vLLM's own spans (vllm/tracing); OpenLLMetry llm.usage.*; OpenInference llm.token_count.*; Vercel's AI SDK ai.usage.*.
# All of them count cached tokens in.
_PROMPT = (
    *("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens", "llm.token_count.prompt"),
    *("ai.usage.inputTokens", "ai.usage.promptTokens"),
)
_OUTPUT = (
    *("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens"),
    *("llm.token_count.completion", "ai.usage.outputTokens", "ai.usage.completionTokens"),
)
_TTFT = ("gen_ai.response.time_to_first_chunk", "gen_ai.latency.time_to_first_token")
"""Seconds: semantic conventions since 1.41; vLLM's and SGLang's own."""
_OPERATION = ("gen_ai.operation.name", "llm.request.type", "openinference.span.kind")
_CALLS = ("chat", "text_completion", "completion", "generate_content", "llm")
_NO_TEXT = ("embeddings", "embedding", "rerank", "reranker")
_VLLM_SPAN = "llm_request"
"""vLLM's span of a finished request (vllm/tracing, 0.29 to 0.33); it names no operation."""


class Span(NamedTuple):
    """One span, as far as it matters here."""

    id: tuple[str | bytes, str | bytes]
    """Trace and span."""
    parent: tuple[str | bytes, str | bytes] | None
    name: str
    start_ns: int | None
    """Since 1970."""
    end_ns: int | None
    failed: bool
    attributes: Mapping[str, object]
    """The attributes of `CALL_ATTRIBUTES`."""


class _Call(NamedTuple):
    id: tuple[str | bytes, str | bytes]
    prompt: str | None
    output: str | None
    ttft_s: str | None
    start_ns: int | None
    end_ns: int | None


CALL_ATTRIBUTES = frozenset((*_PROMPT, *_OUTPUT, *_TTFT, *_OPERATION))
"""The attributes that tell a model call, its lengths and its first token."""


def tabulate_spans(spans: Iterable[Span], source: str) -> Table:
    """The model calls among spans, in the order of the file.

    A span above another one that states tokens is not counted: clients, frameworks and vLLM itself report one call each
    on their own level, and the lowest level is nearest to the engine. Agent and tool spans are no model calls.

    Args:
        spans: in any order.
        source: the file's name in error messages.

    Raises:
        InputError: there are no spans, or none is a model call.
    """
    calls: list[_Call] = []
    num_skipped: Counter[str] = Counter()
    parents: dict[tuple[str | bytes, str | bytes], tuple[str | bytes, str | bytes] | None] = {}
    for span in spans:
        if span.id in parents:
            num_skipped["copy of a span"] += _is_call(span)
            continue
        parents[span.id] = span.parent
        reason = _why_not(span)
        if reason is None:
            prompt, output = _first(span.attributes, _PROMPT), _first(span.attributes, _OUTPUT)
            ttft_s = _first(span.attributes, _TTFT)
            calls.append(_Call(span.id, prompt, output, ttft_s, span.start_ns, span.end_ns))
        elif reason != NO_MODEL_CALL:
            num_skipped[reason] += 1
    if not parents:
        raise InputError(f"{source}: no spans", "name a trace export (OTLP)")
    wrappers = _above(parents, (call.id for call in calls if call.prompt or call.output))
    lowest = [call for call in calls if call.id not in wrappers]
    num_skipped["wraps another call that is counted"] += len(calls) - len(lowest)
    if not lowest and not num_skipped.total():
        hint = "look for spans with gen_ai.usage.input_tokens; vLLM writes them with --otlp-traces-endpoint"
        raise InputError(f"{source}: {len(parents):,} spans, but none is a model call", hint)
    return frame_table(source, _frame(lowest), "OTLP spans", dict(+num_skipped))


def _frame(calls: list[_Call]) -> pl.DataFrame:
    frame = pl.DataFrame(
        {
            "prompt_tokens": [call.prompt for call in calls],
            "output_tokens": [call.output for call in calls],
            "ttft_s": [call.ttft_s for call in calls],
            "start_time_ns": [call.start_ns for call in calls],
            "end_time_ns": [call.end_ns for call in calls],
        },
        schema={
            "prompt_tokens": pl.String,
            "output_tokens": pl.String,
            "ttft_s": pl.String,
            "start_time_ns": pl.Int64,
            "end_time_ns": pl.Int64,
        },
    )
    times = ("ttft_s", "start_time_ns", "end_time_ns")
    return frame.drop(name for name in times if calls and frame[name].null_count() == len(calls))


def _is_call(span: Span) -> bool:
    return _why_not(span) != NO_MODEL_CALL


def _why_not(span: Span) -> str | None:
    """Why a span is no row; None when it is one."""
    operation = (_first(span.attributes, _OPERATION) or "").lower()
    has_tokens = any(name in span.attributes for name in (*_PROMPT, *_OUTPUT))
    if operation in _NO_TEXT:
        return "no text generation"
    if operation not in _CALLS and (operation or not has_tokens) and span.name != _VLLM_SPAN:
        return NO_MODEL_CALL
    return "failed call" if span.failed else None


def _above(
    parents: Mapping[tuple[str | bytes, str | bytes], tuple[str | bytes, str | bytes] | None],
    ids: Iterable[tuple[str | bytes, str | bytes]],
) -> set[tuple[str | bytes, str | bytes]]:
    """All spans above the given ones."""
    found: set[tuple[str | bytes, str | bytes]] = set()
    for span in ids:
        parent = parents.get(span)
        while parent is not None and parent not in found:
            found.add(parent)
            parent = parents.get(parent)
    return found


def _first(attributes: Mapping[str, object], names: tuple[str, ...]) -> str | None:
    return next((str(attributes[name]) for name in names if name in attributes), None)
