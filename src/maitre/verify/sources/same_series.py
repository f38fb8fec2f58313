"""Series that come in pieces or more than once, made one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from maitre.metric_series import MetricSeries

SCRAPER_LABELS = ("prometheus_replica", "replica", "__replica__", "job", "service", "endpoint")
"""Who scraped a target and why, not which target it is: of several equal Prometheus servers (Prometheus operator;
Thanos; Cortex and Mimir), and of several jobs that find the same pod."""

_LOCAL = re.compile(r"localhost\b|127\.|\[?::1")

_Key = tuple[str, tuple[tuple[str, str], ...]]


def join_pieces(series: Iterable[MetricSeries]) -> list[MetricSeries]:
    """Those with the same name and labels as one; of two samples at the same time the first counts."""
    pieces: dict[_Key, list[MetricSeries]] = {}
    for one in series:
        pieces.setdefault(_key(one), []).append(one)
    return [parts[0] if len(parts) == 1 else _joined(parts) for parts in pieces.values()]


def drop_copies(series: Sequence[MetricSeries]) -> tuple[list[MetricSeries], int]:
    """Without what was scraped twice of the same target: of copies the one with most samples stays.

    Returns:
        What stays, and how many were dropped. Targets are the same if their label `instance` is; `localhost` is another
        server to every scraper.
    """
    kept: dict[_Key, MetricSeries] = {}
    for one in series:
        instance = one.labels.get("instance", "")
        key = _key(one, SCRAPER_LABELS if instance and not _LOCAL.match(instance) else ())
        if key not in kept or len(one.values) > len(kept[key].values):
            kept[key] = one
    return [*kept.values()], len(series) - len(kept)


def _key(series: MetricSeries, but: Sequence[str] = ()) -> _Key:
    return series.name, tuple(sorted(pair for pair in series.labels.items() if pair[0] not in but))


def _joined(parts: Sequence[MetricSeries]) -> MetricSeries:
    time_s = np.concatenate([part.time_s for part in parts])
    values = np.concatenate([part.values for part in parts])
    time_s, first = np.unique(time_s, return_index=True)
    return MetricSeries(parts[0].name, parts[0].labels, time_s, values[first])
