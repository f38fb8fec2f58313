"""Counters that run backwards although nobody restarted: several processes answer in turn behind one address.

With `--api-server-count` above 1, or behind a load balancer, each scrape may show another process's counters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from maitre.metric_series import FloatArray, MetricSeries
from maitre.verify.sources.scrape_collation import START_TIME
from maitre.vllm.metric_names import resolve_name

LEAST_RETURNS = 2
"""How often a counter has to come back up to where it fell from, if start times are not exposed; once may be a server
that restarted and caught up."""
MAX_RETURN_SAMPLES = 3
"""Within so many samples."""


def contradictory_counters(series: Sequence[MetricSeries]) -> tuple[str, ...]:
    """The counters that no single process can have counted; empty where all is in order.

    A counter that falls while the process's start time stays, or a start time that runs back, cannot be a restart.
    Where no start time is exposed a counter has to fall and come back several times.

    Args:
        series: under vLLM's own names, and `process_start_time_seconds`.
    """
    starts = {one.place: one for one in series if one.name == START_TIME}
    found = []
    for one in series:
        if one.name == START_TIME or _counts(one.name):
            start = starts.get(one.place)
            backwards = _falls(one) if one is start else _fell_alone(one, start)
            found += [one.name] if backwards else []
    return tuple(dict.fromkeys(found))


def _counts(name: str) -> bool:
    meaning = resolve_name(name)
    return meaning is not None and meaning.family.kind in {"counter", "histogram"} and not name.endswith("_created")


def _falls(start: MetricSeries) -> bool:
    return bool((np.diff(start.values[np.isfinite(start.values)]) < 0).any())


def _fell_alone(counter: MetricSeries, start: MetricSeries | None) -> bool:
    """Whether it fell where no process started."""
    values = counter.values
    fell = np.flatnonzero(np.diff(values) < 0)
    if not len(fell):
        return False
    started = _at_same_times(start, counter.time_s)
    if started is None:
        return _num_returns(values, fell) >= LEAST_RETURNS
    return bool((np.diff(started)[fell] == 0).any())


def _at_same_times(start: MetricSeries | None, time_s: FloatArray) -> FloatArray | None:
    """The start times at a counter's samples; None if they were not scraped together."""
    if start is None:
        return None
    if np.isfinite(start.time_s).all():
        at = np.searchsorted(start.time_s, time_s).clip(max=len(start.time_s) - 1)
        return start.values[at] if np.array_equal(start.time_s[at], time_s) else None
    return start.values if len(start.values) == len(time_s) else None


def _num_returns(values: FloatArray, fell: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    """How often it was soon back at where it fell from."""
    return sum(bool((values[at + 2 : at + 2 + MAX_RETURN_SAMPLES] >= values[at]).any()) for at in fell)
