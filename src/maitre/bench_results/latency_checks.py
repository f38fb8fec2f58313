"""Latencies that cannot be, and inter-token latencies that measure the stream instead of the server."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from maitre.bench_results.doubt import Doubt
from maitre.bench_results.records import Run

_METRICS = ("ttft", "tpot", "itl", "e2el")
_ROUNDING = 1.01


def check_latencies(run: Run) -> Iterator[Doubt]:
    """Figures out of order: negative, a median above the p99, a first token after the last one."""
    for metric in _METRICS:
        keys = [key for key in run.latencies if key.endswith(f"_{metric}_ms")]
        broken = _broken_order(run, metric, keys)
        if broken:
            yield Doubt(
                "impossible-latency",
                f"{metric.upper()} is impossible: {broken}",
                "do not use it; measure again with another client or version",
                ignore=tuple(keys),
            )
    for which in ("mean", "median", "p99"):
        first, whole = run.latencies.get(f"{which}_ttft_ms"), run.latencies.get(f"{which}_e2el_ms")
        if first is not None and whole is not None and first > whole * _ROUNDING:
            yield Doubt(
                "impossible-latency",
                f"{which} TTFT {first:g} ms is above {which} end-to-end latency {whole:g} ms",
                "use neither; check that both columns have the same unit",
                ignore=(f"{which}_ttft_ms", f"{which}_e2el_ms"),
            )


def check_itl(run: Run) -> Iterator[Doubt]:
    """Tokens that come in bursts or several at once: then ITL is no inter-token latency of the server.

    TPOT is (latency - TTFT) / (tokens - 1) of each request, whatever the pieces of the stream.
    """
    latencies = run.latencies
    median, mean, tpot = (latencies.get(key) for key in ("median_itl_ms", "mean_itl_ms", "mean_tpot_ms"))
    keys = tuple(key for key in latencies if key.endswith("_itl_ms"))
    typical = tpot if tpot is not None else mean
    if median is not None and typical and median < typical / 10:
        yield Doubt(
            "itl-burst",
            f"median ITL {median:g} ms against a mean of {typical:g} ms a token: tokens arrive in bursts, so the "
            f"inter-token latency says nothing about the server{_steadiness(run)}",
            "compare TPOT instead; take the proxy or the client's read buffer out of the stream",
            ignore=keys,
        )
    elif mean is not None and tpot and mean > 1.5 * tpot:
        yield Doubt(
            "itl-of-chunks",
            f"mean ITL {mean:g} ms is {mean / tpot:.1f} times mean TPOT {tpot:g} ms: each piece of the stream carries "
            "several tokens (speculative decoding, multi-step scheduling or --stream-interval)",
            "compare TPOT; do not read the ITL as interference by prefills",
            ignore=keys,
        )


def _steadiness(run: Run) -> str:
    p99, median = run.latencies.get("p99_tpot_ms"), run.latencies.get("median_tpot_ms")
    if not p99 or not median or p99 > 1.05 * median:
        return ""
    return f" (p99 TPOT is only {p99 / median:.2f} times the median, so prefills do not interfere)"


def _broken_order(run: Run, metric: str, keys: list[str]) -> str:
    figures = {key.partition("_")[0]: run.latencies[key] for key in keys}
    if any(value < 0 for value in figures.values()):
        return "negative"
    if "e2el" not in metric and figures and not any(figures.values()):
        return "all zero, so the client did not stream"
    ladder = [(which, figures[which]) for which in ("median", "p90", "p95", "p99", "max") if which in figures]
    for (low_name, low), (high_name, high) in pairwise(ladder):
        if low > high * _ROUNDING:
            return f"{low_name} {low:g} ms is above {high_name} {high:g} ms"
    return ""
