"""What a server's metrics settle at, from the part of a replay that is neither ramp nor drain."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maitre.records import Record
from maitre.simulator.replay import Replay
from maitre.simulator.rules import SchedulerRules
from maitre.trial.latencies import weighted_quantiles

Array = NDArray[np.float64]

RAMP = 0.25
"""Share of the requests that come before the figures count."""


class CellFigures(Record):
    """What one engine's metrics settle at in one cell, in vLLM's terms. None: it does not settle, or is not known."""

    keeps_up: bool
    """The queue comes to rest. If not, throughput is what the cell can do, and waiting grows."""
    capacity_rps: float
    """Requests/s when somebody always waits."""
    requests_per_s: float
    output_tokens_per_s: float
    running: float
    """Requests, over time, as is the next one."""
    waiting: float | None
    kv_usage: float
    """Share of the usable blocks, over time."""
    preemptions_per_min: float
    itl_mean_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None


def open_figures(replay: Replay, arrival_s: Array, rules: SchedulerRules, capacity_rps: float) -> CellFigures:
    """From the end of the ramp to the last arrival."""
    assert replay.step_end_s is not None
    first = int(RAMP * len(arrival_s))
    begin_s, end_s = float(arrival_s[first]), float(arrival_s[-1])
    window = _Window(replay, replay.step_end_s, begin_s, end_s, rules)
    ttft_s = (replay.step_end_s[replay.first_token_step] - arrival_s)[first:]
    return window.figures(ttft_s, capacity_rps, keeps_up=True, waiting=window.mean("num_waiting"))


def full_figures(replay: Replay, step_end_s: Array, rules: SchedulerRules, num_clients: int | None) -> CellFigures:
    """From the end of the ramp, when the first sequences are gone, until nobody waits in the replay any more."""
    finish_s = np.sort(step_end_s[replay.last_token_step])
    num_waiting = replay.columns["num_waiting"]
    last = int(np.flatnonzero(num_waiting > 0)[-1]) if num_waiting.any() else len(step_end_s) - 1
    num_slots = int(replay.columns["num_running"].max())
    begin_s, end_s = float(finish_s[min(num_slots, len(finish_s) // 4)]), float(step_end_s[last])
    if end_s <= begin_s:  # all at once in their slots: there is no steady part
        begin_s, end_s = 0.0, float(step_end_s[-1])
    window = _Window(replay, step_end_s, begin_s, end_s, rules)
    ttft_s = None
    if num_clients is not None and num_clients < len(finish_s):
        # each request after the first ones is sent when one has been answered
        ttft_s = step_end_s[replay.first_token_step][num_clients:] - finish_s[: len(finish_s) - num_clients]
        came_s = finish_s[: len(finish_s) - num_clients]
        ttft_s = ttft_s[(came_s >= begin_s) & (came_s <= end_s)]
    return window.figures(ttft_s, window.requests_per_s, keeps_up=False, waiting=None)


class _Window:
    """The steps of a replay that end within a time."""

    def __init__(self, replay: Replay, step_end_s: Array, begin_s: float, end_s: float, rules: SchedulerRules) -> None:
        self._replay, self._rules = replay, rules
        self._step_end_s = step_end_s
        self._steps_s = np.diff(step_end_s, prepend=0.0)
        self._inside = (step_end_s > begin_s) & (step_end_s <= end_s)
        self._span_s = end_s - begin_s

    @property
    def requests_per_s(self) -> float:
        """By the tokens in the window: the requests of a short window end by chance."""
        num_tokens = (self._replay.num_new_tokens + self._first_tokens)[self._inside].sum()
        all_tokens = self._replay.num_new_tokens.sum() + len(self._replay.first_token_step)
        return float(num_tokens * len(self._replay.first_token_step) / all_tokens / self._span_s)

    def mean(self, column: str) -> float:
        """Over time, idle time as what comes after it."""
        values = self._replay.columns[column][self._inside]
        return float(np.average(values, weights=self._steps_s[self._inside])) if len(values) else 0.0

    def figures(
        self, ttft_s: Array | None, capacity_rps: float, *, keeps_up: bool, waiting: float | None
    ) -> CellFigures:
        """All of them."""
        gaps_s, counts = self._token_gaps()
        itl = weighted_quantiles(gaps_s, counts, (50, 99))
        ttft = None if ttft_s is None else weighted_quantiles(ttft_s, np.ones(len(ttft_s)), (50, 95))
        free = self.mean("num_free_blocks")
        return CellFigures(
            keeps_up=keeps_up,
            capacity_rps=capacity_rps,
            requests_per_s=self.requests_per_s,
            output_tokens_per_s=float(self._output_tokens[self._inside].sum() / self._span_s),
            running=self.mean("num_running"),
            waiting=waiting,
            kv_usage=1 - free / self._rules.num_usable_blocks,
            preemptions_per_min=float(self._replay.columns["num_preemptions"][self._inside].sum() / self._span_s * 60),
            itl_mean_s=float(np.average(gaps_s, weights=counts)) if counts.any() else None,
            itl_p50_s=itl and itl[0],
            itl_p99_s=itl and itl[1],
            ttft_mean_s=float(np.mean(ttft_s)) if ttft_s is not None and len(ttft_s) else None,
            ttft_p50_s=ttft and ttft[0],
            ttft_p95_s=ttft and ttft[1],
        )

    @property
    def _first_tokens(self) -> NDArray[np.int64]:
        return np.bincount(self._replay.first_token_step, minlength=self._replay.num_steps)

    @property
    def _output_tokens(self) -> NDArray[np.int64]:
        """Of each step."""
        others = np.bincount(self._replay.token_gaps[:, 1], minlength=self._replay.num_steps)
        tokens: NDArray[np.int64] = self._first_tokens + others + self._replay.columns["num_steady_decodes"]
        return tokens

    def _token_gaps(self) -> tuple[Array, NDArray[np.int64]]:
        """Inter-token latencies in seconds, and how often each occurs."""
        others = self._replay.token_gaps[self._inside[self._replay.token_gaps[:, 1]]]
        other_s = self._step_end_s[others[:, 1]] - self._step_end_s[others[:, 0]]
        steady = self._replay.columns["num_steady_decodes"][self._inside]
        return (
            np.concatenate([self._steps_s[self._inside], other_s]),
            np.concatenate([steady, np.ones(len(others), dtype=np.int64)]),
        )
