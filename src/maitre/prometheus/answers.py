"""What a Prometheus API answers, read: series, names, remarks, or the error it speaks of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np

from maitre.metric_series import FloatArray, MetricSeries, without_giants
from maitre.prometheus.connection import HttpAnswer
from maitre.prometheus.failures import not_prometheus, refusal, unreadable
from maitre.prometheus.native_histograms import NativeHistogram, classic_series

_MAX_TIME_S = 1e11
"""Seconds since 1970: the year 5138. Milliseconds would be more."""


class Answer(msgspec.Struct):
    """The frame of every answer."""

    status: Literal["success", "error", "partial"]
    data: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    warnings: list[str] | None = None
    infos: list[str] | None = None
    isPartial: bool = False  # noqa: N815 - VictoriaMetrics' own spelling

    @property
    def remarks(self) -> list[str]:
        """What the server adds to a success."""
        partial = ["some of the servers that hold the data did not answer"] if self.isPartial else []
        return [*(self.warnings or []), *(self.infos or []), *partial]


class _Row(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []
    histogram: tuple[float, NativeHistogram] | None = None
    histograms: list[tuple[float, NativeHistogram]] = []


class _Result(msgspec.Struct):
    resultType: str  # noqa: N815 - Prometheus' own spelling
    result: msgspec.Raw


def read_answer(root: str, answer: HttpAnswer) -> Answer:
    """The frame of a success.

    Args:
        root: the address, for messages.
        answer: of any status.

    Raises:
        InputError: the server refuses the question or who asks, or is no Prometheus API.
        SystemFailure: it failed, or its answer is cut off.
    """
    try:
        read = msgspec.json.decode(answer.content, type=Answer)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        read = None
    if read is not None and answer.status == 200 and read.status != "error":
        return read
    if read is None and answer.status == 200:
        raise unreadable(root, answer.content)
    said = _words(read, answer.content)
    if read is None and answer.status == 400:
        raise not_prometheus(root, said)
    raise refusal(root, answer.status, said, server=answer.server, location=answer.location)


def read_series(root: str, answer: Answer) -> list[MetricSeries]:
    """The series of a query; a bare number becomes one without a name.

    Raises:
        InputError: not what Prometheus answers.
    """
    try:
        result = msgspec.json.decode(answer.data, type=_Result)
        if result.resultType == "scalar":
            rows = [_Row({}, value=msgspec.json.decode(result.result, type=tuple[float, str]))]
        else:
            rows = msgspec.json.decode(result.result, type=list[_Row])
        return [series for row in rows for series in _series(row)]
    except (msgspec.MsgspecError, ValueError):
        raise not_prometheus(root) from None


def read_names(root: str, answer: Answer) -> list[str]:
    """A list of words.

    Raises:
        InputError: not what Prometheus answers.
    """
    try:
        return msgspec.json.decode(answer.data, type=list[str] | None) or []
    except msgspec.MsgspecError:
        raise not_prometheus(root) from None


def _series(row: _Row) -> Iterator[MetricSeries]:
    name = row.metric.pop("__name__", "")
    samples = row.values or ([row.value] if row.value else [])
    if samples:
        values = without_giants(np.array([float(value) for _, value in samples]))
        yield MetricSeries(name, row.metric, _times_s(samples), values)
    natives = row.histograms or ([row.histogram] if row.histogram else [])
    if natives:
        yield from classic_series(name, row.metric, _times_s(natives), [sample for _, sample in natives])


def _times_s(samples: Sequence[tuple[float, object]]) -> FloatArray:
    """Their moments, shape (n,).

    Raises:
        ValueError: before 1970, or after what Prometheus can have seen.
    """
    time_s = np.array([moment for moment, _ in samples], dtype=np.float64)
    if not ((time_s >= 0) & (time_s < _MAX_TIME_S)).all():
        raise ValueError("a moment outside of all time")
    return time_s


def _words(read: Answer | None, content: bytes) -> str:
    """What the server says, on one line."""
    told = read.error if read is not None else ""
    if not told and content.lstrip()[:1] not in {b"<", b"{"}:
        told = content[:1000].decode("utf-8", "replace")
    return " ".join("".join(c if c.isprintable() else " " for c in told).split())[:300]
