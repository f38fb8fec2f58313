"""Little's law: requests in flight = requests/s x mean latency, whatever the server does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from maitre.bench_results.doubt import Doubt
from maitre.bench_results.records import Run

_TOLERANCE = 0.05
_OUTLIER = 0.10
"""How far below its siblings a row's requests in flight may lie."""
_FEW_WAVES = 3
"""Fewer requests than this times the concurrency: filling and draining the server is most of the run."""


def requests_in_flight(run: Run) -> float | None:
    """Mean number of requests in flight, from rate and mean end-to-end latency; None when one is unknown."""
    latency_ms = run.latencies.get("mean_e2el_ms")
    if run.requests_per_s is None or latency_ms is None:
        return None
    return run.requests_per_s * latency_ms / 1e3


def in_flight_at_most(run: Run) -> int | None:
    """How many requests the client can have had in flight; None when nothing says."""
    caps = [cap for cap in (run.concurrency, run.peak_concurrency, run.num_requests) if cap]
    return min(caps) if run.concurrency or run.peak_concurrency else None


def rounding_rel(run: Run) -> float:
    """Relative error of `requests_in_flight` because rate and latency were rounded when they were printed."""
    figures = (run.requests_per_s, (run.latencies.get("mean_e2el_ms") or 0.0) / 1e3)
    return sum(half_a_digit(value) for value in figures if value)


def check_in_flight(run: Run) -> Iterator[Doubt]:
    """Contradictions between rate, latency and the client's concurrency of one run."""
    in_flight, cap = requests_in_flight(run), run.concurrency
    num_requests = run.num_requests or run.successful
    if in_flight is None or cap is None:
        return
    said = (
        f"{run.requests_per_s:g} requests/s x {run.latencies['mean_e2el_ms'] / 1e3:.4g} s = {in_flight:.1f} in flight"
    )
    if in_flight > cap * (1 + _TOLERANCE + rounding_rel(run)):
        yield Doubt(
            "little-contradiction",
            f"{said}, but the client never had more than {cap} (Little's law): one of the three figures is wrong",
            "measure again and keep the per-request file (vllm bench serve --save-result --save-detailed)",
            fatal=True,
        )
    elif run.request_rate in {"inf", None} and in_flight < cap / 2 and (num_requests or 0) >= _FEW_WAVES * cap:
        yield Doubt(
            "client-below-its-concurrency",
            f"{said} on average, less than half of the client's concurrency of {cap}",
            "give the client more CPU or processes, or lower --max-concurrency to what it can keep",
        )


def outliers(runs: Sequence[Run]) -> dict[int, Doubt]:
    """Rows with fewer requests in flight than their client's concurrency, where the other rows agree with theirs.

    Ramp and drain keep the mean below the concurrency, but alike for all rows of one workload.
    """
    ratios = {
        row: in_flight / run.concurrency
        for row, run in enumerate(runs)
        if run.concurrency and run.request_rate in {"inf", None} and (in_flight := requests_in_flight(run)) is not None
    }
    if len(ratios) < 4:
        return {}
    typical = median(ratios.values())
    return {
        row: Doubt(
            "little-contradiction",
            f"row {row} contradicts itself: {runs[row].requests_per_s:g} requests/s x "
            f"{runs[row].latencies['mean_e2el_ms'] / 1e3:.4g} s = {ratio * (runs[row].concurrency or 0):.1f} "
            f"requests in flight at concurrency {runs[row].concurrency} (x{ratio:.3f}; the other rows: x{typical:.2f})",
            "measure this row again",
        )
        for row, ratio in ratios.items()
        if ratio < typical * (1 - _OUTLIER) - rounding_rel(runs[row])
    }


def half_a_digit(value: float) -> float:
    """Half a unit of the last decimal that a figure shows, relative to it: 0.06 may be off by 8 %."""
    text = f"{value:.6g}"
    decimals = len(text.partition(".")[2]) if "e" not in text else 0
    return 0.5 * 10.0**-decimals / value
