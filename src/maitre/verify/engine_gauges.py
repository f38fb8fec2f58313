"""What each engine ran, queued and held over time: causes are told apart engine by engine, never by sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maitre.metric_series import FloatArray, MetricSeries
from maitre.vllm.metric_families import KV_USAGE

RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)
SWAPPED = ("vllm:num_requests_swapped",)
AT_LIMIT = 0.95
"""A limit binds from this share of it on: a slot that came free is filled a step later, and samples fall between."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineGauges:
    """The samples of one engine, NaN where one is missing; arrays of shape (n,)."""

    place: str
    engine: str
    time_s: FloatArray
    running: FloatArray
    waiting: FloatArray
    kv_usage: FloatArray

    @property
    def name(self) -> str:
        """For a message; empty where there is nothing to tell apart."""
        return " ".join([*([self.place] if self.place else []), *([f"engine {self.engine}"] if self.engine else [])])

    @property
    def in_flight(self) -> FloatArray:
        """Requests that run or wait."""
        both = np.stack([self.running, self.waiting])
        total: FloatArray = np.where(np.isnan(both).all(axis=0), np.nan, np.nansum(both, axis=0))
        return total

    def cut(self, inside: NDArray[np.bool_]) -> EngineGauges:
        """Some of the samples."""
        return EngineGauges(
            self.place, self.engine, self.time_s[inside], self.running[inside], self.waiting[inside],
            self.kv_usage[inside],
        )  # fmt: skip


def engine_gauges(series: Sequence[MetricSeries]) -> tuple[EngineGauges, ...]:
    """The gauges of each engine on the union of its own times; of two equivalent families the first that has values."""
    engines = dict.fromkeys(one.engine for one in series if one.name in (*RUNNING, *WAITING, *KV_USAGE))
    return tuple(_one_engine([one for one in series if one.engine == key], *key) for key in engines)


def _one_engine(series: Sequence[MetricSeries], place: str, engine: str) -> EngineGauges:
    rows = [_combined(series, RUNNING), _combined(series, WAITING), _combined(series, KV_USAGE, np.nanmax)]
    swapped = _combined(series, SWAPPED)
    times = np.unique(np.concatenate([times for times, _ in rows]))
    if np.isnan(times).any():  # undated scrapes: in their order
        times = np.full(max(len(t) for t, _ in rows), np.nan)
        running, waiting, kv_usage = (_padded(values, len(times)) for _, values in rows)
        return EngineGauges(place, engine, times, running, waiting, kv_usage)
    running, waiting, kv_usage = (_on(times, *row) for row in rows)
    waiting = waiting + np.nan_to_num(_on(times, *swapped)) if len(swapped[0]) else waiting
    return EngineGauges(place, engine, times, running, waiting, kv_usage)


def _combined(
    series: Sequence[MetricSeries], names: Sequence[str], combine: Callable[..., FloatArray] = np.nansum
) -> tuple[FloatArray, FloatArray]:
    """Times and values of the first of several names that has any.

    Negative values are no numbers of requests. Rows that differ in other labels are added up; of KV usage, which some
    versions show once for each process (0.11, vllm-project/vllm#28792), the highest is the engine's.
    """
    for name in names:
        rows = [one for one in series if one.name == name and np.isfinite(one.values).any()]
        if not rows:
            continue
        times = np.unique(np.concatenate([row.time_s for row in rows]))
        if len(rows) == 1 or np.isnan(times).any():
            return rows[-1].time_s, np.where(rows[-1].values < 0, np.nan, rows[-1].values)
        stacked = np.stack([_on(times, row.time_s, np.where(row.values < 0, np.nan, row.values)) for row in rows])
        some = ~np.isnan(stacked).all(axis=0)
        values = np.full(len(times), np.nan)
        values[some] = combine(stacked[:, some], axis=0)
        return times, values
    return np.array([]), np.array([])


def _on(times: FloatArray, time_s: FloatArray, values: FloatArray) -> FloatArray:
    """Values at other times, NaN where there is none."""
    out = np.full(len(times), np.nan)
    if len(time_s):
        out[np.searchsorted(times, time_s)] = values
    return out


def _padded(values: FloatArray, length: int) -> FloatArray:
    return np.concatenate([values, np.full(length - len(values), np.nan)])


def share(hits: NDArray[np.bool_], of: NDArray[np.bool_] | None = None) -> float:
    """The share of samples; 0 where there are none."""
    chosen = hits if of is None else hits[of]
    return float(chosen.mean()) if len(chosen) else 0.0
