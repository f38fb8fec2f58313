"""When servers started, stopped or restarted within a window that was read at long steps.

What a server counted between the last step and a restart is lost, and a restart hides altogether if the counter is past
its old value by the next step. So the steps at which that happened are read again, more closely.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from maitre.metric_series import MetricSeries

MARGIN_S = 120.0
"""Longer than a scrape interval, so that the last sample before a restart is within sight."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A stretch of time in which servers started, stopped or restarted."""

    start_s: float
    end_s: float
    instances: frozenset[str]
    """The label of the servers concerned; empty where a server has none."""
    is_restart: bool
    """Whether a counter fell."""


def find_turns(
    counters: Sequence[MetricSeries], resets: Sequence[MetricSeries], start_s: float, end_s: float, step_s: float
) -> list[Turn]:
    """Where to look more closely: restarts first, then in the order of time.

    Args:
        counters: one or more for each process, at even steps.
        resets: non-zero where the server saw a counter fall within `step_s` and the margin before.
        start_s: of the window.
        end_s: its end.
        step_s: of both.
    """
    found = [turn for one in counters for turn in _turns(one, start_s, end_s, step_s)]
    for one in resets:
        instances = frozenset({one.labels.get("instance", "")})
        found += [Turn(t - step_s - MARGIN_S, t, instances, is_restart=True) for t in one.time_s[one.values > 0]]
    merged = _merge([_clip(turn, start_s, end_s) for turn in found])
    return sorted(merged, key=lambda turn: (not turn.is_restart, turn.start_s))


def _turns(counter: MetricSeries, start_s: float, end_s: float, step_s: float) -> Iterator[Turn]:
    """Of one process. A server may show a value up to a step longer than it had one, as VictoriaMetrics does."""
    time_s, instances = counter.time_s, frozenset({counter.labels.get("instance", "")})
    late, gaps = 1.5 * step_s, np.flatnonzero(np.diff(time_s) > 1.5 * step_s)
    starts = [time_s[0]] if time_s[0] > start_s + late else []
    stops = [time_s[-1]] if time_s[-1] < end_s - late else []
    for t in (*starts, *time_s[gaps + 1]):
        yield Turn(t - step_s - MARGIN_S, t, instances, is_restart=False)
    for t in (*stops, *time_s[gaps]):
        yield Turn(t - step_s, t + step_s, instances, is_restart=False)
    for i in np.flatnonzero(np.diff(counter.values) < 0):
        if time_s[i + 1] - time_s[i] <= late:
            yield Turn(time_s[i], time_s[i + 1], instances, is_restart=True)


def _clip(turn: Turn, start_s: float, end_s: float) -> Turn:
    return Turn(float(max(turn.start_s, start_s)), float(min(turn.end_s, end_s)), turn.instances, turn.is_restart)


def _merge(turns: Sequence[Turn]) -> list[Turn]:
    """Those that overlap become one."""
    merged: list[Turn] = []
    for turn in sorted(turns, key=lambda turn: turn.start_s):
        if merged and turn.start_s <= merged[-1].end_s:
            last = merged.pop()
            end_s = max(last.end_s, turn.end_s)
            both = last.instances | turn.instances
            turn = Turn(last.start_s, end_s, both, last.is_restart or turn.is_restart)  # noqa: PLW2901
        merged.append(turn)
    return merged
