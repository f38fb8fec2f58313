"""OTLP traces as JSON: what collectors write to files, a document a line, in a list, or one alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from maitre.errors import InputError
from maitre.files import parse_json
from maitre.workload.spans import CALL_ATTRIBUTES, Span, tabulate_spans
from maitre.workload.tables import Table

_HEAD_BYTES = 4096
_MAX_DOCUMENT_BYTES = 128 << 20
"""A longer document is refused: as Python objects it would take several times as much memory."""
_NAMES = (b'"resourceSpans"', b'"resource_spans"', b'"scopeSpans"')
_KINDS = ("stringValue", "intValue", "doubleValue", "string_value", "int_value", "double_value")


def looks_like_otlp_json(content: bytes) -> bool:
    """Whether a JSON text names OTLP's resource spans in its first bytes."""
    head = content[:_HEAD_BYTES]
    return any(name in head for name in _NAMES)


def open_otlp_json(content: bytes, source: str) -> Table:
    """Read the model calls of a trace export.

    Args:
        content: UTF-8; numbers of 64 bits may be strings, as the specification has it, or numbers; ids hex or base64.
        source: the file's name in error messages.

    Raises:
        InputError: broken JSON (names the line), or no model calls.
    """
    return tabulate_spans(_spans(content, source), source)


def _spans(content: bytes, source: str) -> Iterator[Span]:
    for document in _documents(content, source):
        for resource in _lists(document, "resourceSpans", "resource_spans"):
            for scope in _lists(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
                for span in _lists(scope, "spans"):
                    yield _span(span)


def _documents(content: bytes, source: str) -> Iterator[dict[str, Any]]:
    if content.lstrip()[:1] == b"{" and _ends_first_line(content):
        for number, line in enumerate(content.split(b"\n"), 1):
            if line.strip():
                yield from _parse(line, f"{source}, line {number}")
        return
    yield from _parse(content, source)


def _ends_first_line(content: bytes) -> bool:
    try:
        msgspec.json.decode(content.lstrip().partition(b"\n")[0], type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _parse(text: bytes, where: str) -> list[dict[str, Any]]:
    if len(text) > _MAX_DOCUMENT_BYTES:
        what = f"one JSON document of more than {_MAX_DOCUMENT_BYTES >> 20} MiB"
        raise InputError(f"{where}: {what}", "write one export a line, as the collector's file exporter does")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        value = parse_json(text.decode(), where)
    documents = value if isinstance(value, list) else [value]
    if not all(isinstance(document, dict) for document in documents):
        raise InputError(f"{where}: not an OTLP export", "an object with resourceSpans was expected")
    return documents


def _lists(record: dict[str, Any], *names: str) -> list[dict[str, Any]]:
    """The objects under the first of some names."""
    value = next((record[name] for name in names if name in record), None)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _span(span: dict[str, Any]) -> Span:
    trace = str(span.get("traceId", span.get("trace_id", "")))
    number = str(span.get("spanId", span.get("span_id", "")))
    parent = span.get("parentSpanId", span.get("parent_span_id"))
    status = span.get("status")
    return Span(
        id=(trace, number),
        parent=(trace, str(parent)) if parent else None,
        name=str(span.get("name", "")),
        start_ns=_nanoseconds(span.get("startTimeUnixNano", span.get("start_time_unix_nano"))),
        end_ns=_nanoseconds(span.get("endTimeUnixNano", span.get("end_time_unix_nano"))),
        failed=isinstance(status, dict) and str(status.get("code")) in {"2", "STATUS_CODE_ERROR"},
        attributes=_attributes(span.get("attributes")),
    )


def _attributes(pairs: Any) -> dict[str, object]:
    found: dict[str, object] = {}
    for pair in pairs if isinstance(pairs, list) else []:
        key = pair.get("key") if isinstance(pair, dict) else None
        if isinstance(key, str) and key in CALL_ATTRIBUTES and isinstance(value := pair.get("value"), dict):
            kind = next((kind for kind in _KINDS if kind in value), None)
            if kind:
                found[key] = value[kind]
    return found


def _nanoseconds(value: Any) -> int | None:
    """A time of 64 bits, whether written as a string or as a number; 0 stands for none."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 < number < 2**63 else None
