"""One line of the text format that `/metrics` speaks: Prometheus' own, OpenMetrics, and names quoted in braces.

A server is scraped each second while it is measured, so a line takes microseconds; label texts, which repeat, are read
once. Formats: prometheus.io/docs/instrumenting/exposition_formats and its OpenMetrics 1.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from maitre.metric_series import MAX_VALUE

MAX_LINE_CHARACTERS = 2**16
"""A longer line is no sample of vLLM."""

_LINE = re.compile(
    r"(?P<name>[A-Za-z_:][\w:.]*+)?\s*+"
    r'(?:\{(?P<labels>(?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+)\})?\s*+'
    r"(?P<value>[-+.\w]++)(?:\s++(?P<time>-?[\d.]++(?:[eE][-+]?\d++)?))?\s*+(?:\#.*)?",
    re.ASCII,
)
_LABEL = re.compile(r'\s*(?P<key>[A-Za-z_][\w.]*|"(?:[^"\\]|\\.)*")\s*(?:=\s*"(?P<value>(?:[^"\\]|\\.)*)")?\s*(?:,|$)')
_MAX_KEPT = 2048
"""Characters of labels that are kept in memory to be recognised; cache_config_info of 0.32 has 1,500."""
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_MILLISECONDS_FROM = 1e11
"""Prometheus' own format has milliseconds, OpenMetrics has seconds; as seconds this is the year 5138."""
_NONE: Mapping[str, str] = MappingProxyType({})


class ExposedSample(NamedTuple):
    """One line."""

    name: str
    labels: Mapping[str, str]
    """Shared between samples; not to be changed."""
    value: float
    time_s: float | None
    """Since the epoch, where the line has it."""


def parse_sample(line: str) -> ExposedSample | None:
    """Read a line; None for a comment and for what is no sample."""
    return _plain_sample(line) or _any_sample(line)


def _plain_sample(line: str) -> ExposedSample | None:
    """By far the most lines: name, labels, value and no more. None for any other."""
    head, closing, number = line.rpartition("} ")
    name, _, text = head.partition("{")
    if not closing or "#" in line or not name.isascii() or not name.replace(":", "_").isidentifier():
        return None
    value, (named, labels) = _value(number), _labels(text)
    if value is None or labels is None or named or len(line) > MAX_LINE_CHARACTERS:
        return None
    return ExposedSample(name, labels, value, None)


def _any_sample(line: str) -> ExposedSample | None:
    match = _LINE.fullmatch(line.rstrip()) if len(line) <= MAX_LINE_CHARACTERS else None
    if match is None:
        return None
    name, text, number, time = match.groups()
    named, labels = _labels(text) if text else ("", _NONE)
    value = _value(number)
    if value is None or labels is None or not (name or named):
        return None
    return ExposedSample(name or named, labels, value, _time_s(time))


def _labels(text: str) -> tuple[str, Mapping[str, str] | None]:
    return _known_labels(text) if len(text) <= _MAX_KEPT else _read_labels(text)


def _read_labels(text: str) -> tuple[str, Mapping[str, str] | None]:
    """The name, where it stands among the labels, and the labels; None if they cannot be read."""
    name, at = "", 0
    labels: dict[str, str] = {}
    end = len(text.rstrip())
    while at < end:
        match = _LABEL.match(text, at, end)
        if match is None or (match["value"] is None and not match["key"].startswith('"')):
            return "", None
        at, key = match.end(), match["key"]
        if key.startswith('"'):
            key = _unescaped(key[1:-1])
        if match["value"] is None:
            name = key
        else:
            labels[key] = _unescaped(match["value"])
    return name, MappingProxyType(labels)


_known_labels = lru_cache(maxsize=8192)(_read_labels)


def _unescaped(text: str) -> str:
    return re.sub(r'\\[\\"n]', lambda match: _ESCAPES[match[0]], text) if "\\" in text else text


def _value(text: str) -> float | None:
    value = _number(text)
    return math.nan if value is not None and MAX_VALUE <= abs(value) < math.inf else value


def _number(text: str) -> float | None:
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def _time_s(text: str | None) -> float | None:
    number = _number(text) if text else None
    if number is None:
        return None
    time_s = number / 1000 if number >= _MILLISECONDS_FROM else number
    return time_s if 0 <= time_s < _MILLISECONDS_FROM else None
