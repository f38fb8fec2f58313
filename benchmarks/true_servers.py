"""Servers whose true step time, lengths and arrivals are known, and what their metrics show of them.

The truth is a replay of the true requests, summed up here and not with what foretells it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from maitre.metric_series import Histogram
from maitre.records import Cell, Workload
from maitre.simulator.replay import Replay, replay_arrivals, replay_at_once
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.surface import ReplayedSurface
from maitre.verify.foresight.credibility import ObservedFigures
from maitre.verify.foresight.observed_traffic import ObservedTraffic
from maitre.verify.foresight.steady_traffic import KnownServer

Array = NDArray[np.float64]

MAX_MODEL_LEN = 32_768


@dataclass(frozen=True, slots=True)
class TrueServer:
    """A server and its traffic."""

    known: KnownServer
    coefficients: Array
    """The true step time, shape (7,)."""
    requests: Workload
    """With arrival times unless clients wait."""
    num_clients: int | None
    """Each sends its next request when it has its answer; None where requests come by themselves."""

    def rules(self, cell: Cell) -> SchedulerRules:
        """Of the server at a cell."""
        return SchedulerRules.of_server(self.known.server.at(cell), self.known.num_gpu_blocks(cell))


@dataclass(frozen=True, slots=True)
class Truth:
    """What a cell really does: steps, and requests that came and left."""

    replay: Replay
    step_end_s: Array
    arrival_s: Array
    begin_s: float
    end_s: float

    def mean(self, column: str) -> float:
        """Over the time of the window."""
        values = self.replay.columns[column][self.inside]
        return float(np.average(values, weights=np.diff(self.step_end_s, prepend=0.0)[self.inside]))

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Steps of the window."""
        return (self.step_end_s > self.begin_s) & (self.step_end_s <= self.end_s)

    @property
    def gaps_s(self) -> Array:
        """Every inter-token latency of the window."""
        steady = np.repeat(
            np.diff(self.step_end_s, prepend=0.0), self.replay.columns["num_steady_decodes"] * self.inside
        )
        others = self.replay.token_gaps[self.inside[self.replay.token_gaps[:, 1]]]
        return np.concatenate([steady, self.step_end_s[others[:, 1]] - self.step_end_s[others[:, 0]]])

    @property
    def came(self) -> NDArray[np.bool_]:
        """Requests that came in the window."""
        return (self.arrival_s > self.begin_s) & (self.arrival_s <= self.end_s)

    @property
    def ttft_s(self) -> Array:
        """Of the requests that came in the window."""
        return (self.step_end_s[self.replay.first_token_step] - self.arrival_s)[self.came]

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Requests that ended in the window."""
        ends_s = self.step_end_s[self.replay.last_token_step]
        return (ends_s > self.begin_s) & (ends_s <= self.end_s)

    @property
    def in_flight(self) -> Array:
        """Sampled every fiftieth of the window."""
        moments = np.linspace(self.begin_s, self.end_s, 51)[1:, None]
        ends_s = self.step_end_s[self.replay.last_token_step]
        counts: Array = ((self.arrival_s <= moments) & (ends_s > moments)).sum(axis=1).astype(float)
        return counts

    def figures(self, usable_blocks: int) -> dict[str, float]:
        """In the words of `CellFigures`, where they have a meaning."""
        span_s = self.end_s - self.begin_s
        return {
            "output_tokens_per_s": len(self.gaps_s) / span_s + self.finished.sum() / span_s,
            "itl_mean_s": float(self.gaps_s.mean()),
            "itl_p99_s": float(np.percentile(self.gaps_s, 99)),
            "ttft_p95_s": float(np.percentile(self.ttft_s, 95)),
            "waiting": max(0.0, float(self.in_flight.mean()) - self.mean("num_running")),
            "running": self.mean("num_running"),
            "kv_usage": 1 - self.mean("num_free_blocks") / usable_blocks,
            "preemptions_per_min": 60 * self.replay.columns["num_preemptions"][self.inside].sum() / span_s,
        }


def truth(server: TrueServer, cell: Cell) -> Truth:
    """Run the true requests at a cell; the first third and the drain do not count."""
    rules, requests = server.rules(cell), server.requests
    surface = ReplayedSurface(
        requests, server.known.server, server.known.calibration.step_time, server.known.num_gpu_blocks
    )
    step_time = surface.step_time(cell, server.coefficients)
    if server.num_clients is None:
        assert requests.arrival_s is not None
        replay = replay_arrivals(requests, rules, step_time)
        assert replay.step_end_s is not None
        step_end_s, arrival_s = replay.step_end_s, requests.arrival_s
        begin_s, end_s = float(arrival_s[len(arrival_s) // 3]), float(arrival_s[-1])
        return Truth(replay, step_end_s, arrival_s, begin_s, end_s)
    slots = min(cell.max_num_seqs, server.num_clients)
    replay = replay_at_once(requests, replace(rules, max_num_seqs=slots))
    step_end_s = np.cumsum(replay.steps_s(step_time))
    ends_s = np.sort(step_end_s[replay.last_token_step])
    arrival_s = np.concatenate([np.zeros(server.num_clients), ends_s])[: requests.num_requests]
    begin_s, end_s = float(ends_s[len(ends_s) // 3]), float(ends_s[-2 * server.num_clients])
    return Truth(replay, step_end_s, arrival_s, begin_s, end_s)


def observe(server: TrueServer) -> tuple[ObservedTraffic, ObservedFigures]:
    """What metrics show of the present cell."""
    seen = truth(server, server.known.server.cell)
    span_s, in_flight, requests = seen.end_s - seen.begin_s, seen.in_flight, server.requests
    figures = seen.figures(server.rules(server.known.server.cell).num_usable_blocks)
    traffic = ObservedTraffic(
        prompt_lengths=bucketed(requests.prompt_tokens[seen.finished]),
        output_lengths=bucketed(requests.output_tokens[seen.finished]),
        arrival_rps=seen.came.sum() / span_s,
        finished_rps=seen.finished.sum() / span_s,
        in_flight_mean=float(in_flight.mean()),
        in_flight_p95=float(np.percentile(in_flight, 95)),
        growth=float(in_flight[-1] - in_flight[0]),
    )
    return traffic, ObservedFigures(
        running=figures["running"],
        waiting=figures["waiting"],
        kv_usage=figures["kv_usage"],
        itl_mean_s=figures["itl_mean_s"],
        ttft_mean_s=float(seen.ttft_s.mean()),
    )


def bucketed(lengths: NDArray[np.int64]) -> Histogram:
    """Counted as vLLM counts: 1, 2, 5, 10, 20, 50 … up to max_model_len (`v1/metrics/buckets.py`)."""
    finite = [m * 10**e for e in range(6) for m in (1, 2, 5) if m * 10**e <= MAX_MODEL_LEN]
    upper = np.array([*finite, np.inf])
    counts = np.bincount(np.searchsorted(upper, lengths), minlength=len(upper)).astype(float)
    return Histogram(upper, counts, float(lengths.sum()))
