"""OTLP traces as protobuf: one export, or many, each after its length (the collector's files of format proto)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from maitre.errors import InputError, UnsupportedError
from maitre.workload.spans import CALL_ATTRIBUTES, Span, tabulate_spans
from maitre.workload.tables import Table

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtobufSpan

_FIRST_FIELD = 0x0A
"""Tag of field 1 with a length: `resource_spans` of ExportTraceServiceRequest and TracesData (trace_service.proto)."""
_LENGTH_BYTES = 4
"""Before each request in a file of many, big-endian (collector file exporter, format proto)."""
_STATUS_ERROR = 2


def looks_like_otlp_protobuf(content: bytes) -> bool:
    """Whether bytes are no text and begin as an OTLP message, with or without a length before it."""
    if not _is_binary(content[:4096]):
        return False
    return content[0] == _FIRST_FIELD or _has_length(content)


def open_otlp_protobuf(content: bytes, source: str) -> Table:
    """Read the model calls of a trace export.

    Raises:
        InputError: a message is broken or truncated, or there are no model calls.
        UnsupportedError: the optional dependency is not installed.
    """
    try:
        from opentelemetry.proto.trace.v1.trace_pb2 import TracesData  # noqa: PLC0415 - optional
    except ImportError:
        hint = "pip install 'maitre[otlp]', or export the traces as JSON"
        raise UnsupportedError(f"{source}: OTLP traces in protobuf need opentelemetry-proto", hint) from None
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with it

    def spans() -> Iterator[Span]:
        for message in _messages(content, source):
            try:
                traces = TracesData.FromString(message)
            except DecodeError:
                raise _broken(source) from None
            for resource in traces.resource_spans:
                for scope in resource.scope_spans:
                    yield from map(_span, scope.spans)

    return tabulate_spans(spans(), source)


def _messages(content: bytes, source: str) -> Iterator[bytes]:
    if not _has_length(content):
        yield content
        return
    start = 0
    while start < len(content):
        end = start + _LENGTH_BYTES + int.from_bytes(content[start : start + _LENGTH_BYTES], "big")
        if end > len(content):
            raise _broken(source)
        yield content[start + _LENGTH_BYTES : end]
        start = end


def _has_length(content: bytes) -> bool:
    length = int.from_bytes(content[:_LENGTH_BYTES], "big")
    return content[_LENGTH_BYTES : _LENGTH_BYTES + 1] == bytes([_FIRST_FIELD]) and 0 < length < 2**31


def _is_binary(head: bytes) -> bool:
    try:
        head[:-3].decode()  # without a character that the cut may split
    except UnicodeDecodeError:
        return True
    return b"\0" in head


def _span(span: ProtobufSpan) -> Span:
    return Span(
        id=(span.trace_id, span.span_id),
        parent=(span.trace_id, span.parent_span_id) if span.parent_span_id else None,
        name=span.name,
        start_ns=_nanoseconds(span.start_time_unix_nano),
        end_ns=_nanoseconds(span.end_time_unix_nano),
        failed=span.status.code == _STATUS_ERROR,
        attributes={pair.key: _value(pair) for pair in span.attributes if pair.key in CALL_ATTRIBUTES},
    )


def _value(pair: KeyValue) -> object:
    kind = pair.value.WhichOneof("value")
    return getattr(pair.value, kind) if kind else ""


def _nanoseconds(number: int) -> int | None:
    return number if 0 < number < 2**63 else None


def _broken(source: str) -> InputError:
    return InputError(f"{source}: the protobuf data is corrupt or truncated", "write the file again")
