"""Scrapes of one deployment, made into time series."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from maitre.errors import InputError
from maitre.metric_series import MetricSeries
from maitre.vllm.exposition import parse_sample
from maitre.vllm.metrics_text import MetricSample, parse_metrics_text

START_TIME = "process_start_time_seconds"
"""Of prometheus_client's own process collector: when the process that answers was started."""
MAX_SAMPLES = 2**24
"""Of all scrapes together: a day at 15 s of a server with 3,000 samples."""

_MAX_OBJECTS = 2**16
_START_LINE = re.compile(rf"^{START_TIME}\b.*$", re.MULTILINE)


class Scrape(NamedTuple):
    """What one look at `/metrics` showed."""

    time_s: float
    """Since the epoch; NaN where it is not known."""
    samples: Sequence[MetricSample]


@dataclass(frozen=True, slots=True)
class Scraped:
    """The series of several scrapes, and what was lost on the way."""

    series: tuple[MetricSeries, ...]
    """Dated all of them, or none: one scrape of unknown time leaves them in the given order."""
    num_scrapes: int
    source: str
    """Where they come from, fit to be shown."""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Column:
    """One series while it grows."""

    name: str
    labels: Mapping[str, str]
    time_s: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))


class _Columns:
    """All series while they grow. Scrapes share their labels' objects, which are compared first."""

    def __init__(self) -> None:
        self._by_labels: dict[tuple[str, frozenset[tuple[str, str]]], _Column] = {}
        self._by_object: dict[tuple[str, int], tuple[Mapping[str, str], _Column]] = {}

    def __iter__(self) -> Iterator[_Column]:
        return iter(self._by_labels.values())

    def add(self, sample: MetricSample, time_s: float) -> None:
        known = self._by_object.get((sample.name, id(sample.labels)))
        column = self._find(sample) if known is None else known[1]
        column.time_s.append(time_s if sample.time_s is None else sample.time_s)
        column.values.append(sample.value)

    def _find(self, sample: MetricSample) -> _Column:
        key = (sample.name, frozenset(sample.labels.items()))
        column = self._by_labels.setdefault(key, _Column(sample.name, sample.labels))
        if len(self._by_object) >= _MAX_OBJECTS:
            self._by_object.clear()
        self._by_object[sample.name, id(sample.labels)] = (sample.labels, column)  # kept alive, so that its id stays
        return column


def read_scrape(text: str, prefixes: Sequence[str] = ()) -> list[MetricSample]:
    """The samples of vLLM in the text of one scrape, and when the process that answered was started.

    Args:
        text: the answer of `/metrics`.
        prefixes: further beginnings that stand for `vllm:`.

    Returns:
        Nothing where nothing is vLLM's.
    """
    samples = parse_metrics_text(text, prefixes)
    starts = (parse_sample(line) for line in _START_LINE.findall(text)) if samples else ()
    return samples + [MetricSample(start.name, start.labels, start.value, start.time_s) for start in starts if start]


def collate(scrapes: Iterable[Scrape], source: str, notes: Sequence[str] = (), instance: str = "") -> Scraped:
    """Series of scrapes; a time that was exposed with a sample counts before the scrape's own.

    Args:
        scrapes: in any order if they are dated, else in the order of time.
        source: what to call them in a message.
        notes: what was lost already.
        instance: the server, where several are scraped; becomes a label of samples that have no such label.

    Raises:
        InputError: more than `MAX_SAMPLES`.
    """
    columns = _Columns()
    num_scrapes = num_samples = 0
    for scrape in scrapes:
        num_scrapes, num_samples = num_scrapes + 1, num_samples + len(scrape.samples)
        if num_samples > MAX_SAMPLES:
            raise InputError(f"{source}: more than {MAX_SAMPLES:,} samples", "give fewer scrapes, such as one a minute")
        for sample in scrape.samples:
            columns.add(sample, scrape.time_s)
    undated = sum(1 for column in columns if not all(map(math.isfinite, column.time_s)))
    told = list(notes)
    if undated and num_scrapes > 1:
        told.append("the scrapes have no times: rates and windows are not known, and they count in the given order")
    series = [_series(column, instance, is_dated=not undated) for column in columns]
    repeated = max((len(column.values) - len(one.values) for column, one in zip(columns, series, strict=True)),
                   default=0)  # fmt: skip
    if repeated:
        told.append(f"{repeated} of {num_scrapes} scrapes have the time of another one, of which the first counts")
    return Scraped(tuple(series), num_scrapes, source, tuple(told))


def _series(column: _Column, instance: str, *, is_dated: bool) -> MetricSeries:
    """In ascending time, the first of those at the same time."""
    labels = {"instance": instance, **column.labels} if instance else column.labels
    time_s, values = np.array(column.time_s, dtype=np.float64), np.array(column.values, dtype=np.float64)
    if not is_dated:
        return MetricSeries(column.name, labels, np.full(len(values), np.nan), values)
    time_s, first = np.unique(time_s, return_index=True)
    return MetricSeries(column.name, labels, time_s, values[first])
