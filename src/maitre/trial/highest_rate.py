"""The highest rate of requests at which latency targets hold, by bisection.

Latencies grow with the rate, as far as anybody needs to know: with the same requests and the same pattern of arrivals a
percentile falls by a few thousandths here and there, never by much. A rate above the capacity is never the answer,
however short the run: once a queue is there, it would not shrink any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log

from maitre.slo import LatencyTarget
from maitre.trial.attainment import attains
from maitre.trial.run import Run

TOLERANCE = 0.01
"""The answer meets the targets, and a rate higher by this share does not."""
START = 0.7
"""Share of the capacity to begin with, when no neighbour says better."""
WIDEN = 1.3
"""First step away from there; each further step is three times as long as a logarithm, up to `WIDEST`."""
WIDEST = 4.0
ALONE_BELOW = 0.25
"""Share of the capacity below which it is asked first whether the targets are met at all."""
LEAST_SHARE = 1e-3
"""Below this share of the capacity there is no rate worth the name."""


@dataclass(frozen=True, slots=True)
class HighestRateFound:
    """What the search has found for one cell and one step time."""

    rate_rps: float
    """The highest rate tried that meets the targets; 0 if none does."""
    crossing_rps: float
    """Where the targets cease to hold, interpolated: smoother than `rate_rps`; 0 if they never hold."""
    bound_by: LatencyTarget | None
    """The target that a higher rate would not meet; None if the capacity ends it."""
    run: Run
    """At `rate_rps`; if that is 0, with each request alone, or at the lowest rate tried."""
    capacity_rps: float
    num_runs: int


@dataclass(frozen=True, slots=True)
class _Probe:
    """One rate tried."""

    rate_rps: float
    run: Run
    gap: float
    """Logarithm of the tightest target's percentile over its limit; the targets are met at 0 and below."""
    tightest: LatencyTarget

    @property
    def is_met(self) -> bool:
        return self.gap <= 0


def highest_rate(
    run_at: Callable[[float], Run],
    run_alone: Callable[[], Run],
    targets: Sequence[LatencyTarget],
    capacity_rps: float,
    *,
    guess_rps: float | None = None,
    tolerance: float = TOLERANCE,
) -> HighestRateFound:
    """Find the highest rate.

    Args:
        run_at: the run at a rate in requests/s.
        run_alone: the run in which each request has the server to itself.
        targets: at least one; all must hold.
        capacity_rps: what the cell serves when somebody always waits.
        guess_rps: where the answer may be, such as that of a neighbouring cell; 0 if the neighbour has none.
        tolerance: relative width of the bracket at the end.
    """
    probes: list[_Probe] = []

    def probe(rate_rps: float) -> _Probe:
        run = run_at(rate_rps) if rate_rps else run_alone()
        probes.append(_Probe(rate_rps, run, *_tightest(run, targets)))
        return probes[-1]

    met, missed = _bracket(probe, capacity_rps, guess_rps, tolerance)
    if met is None:
        assert missed is not None
        return HighestRateFound(0.0, 0.0, missed.tightest, missed.run, capacity_rps, len(probes))
    if missed is None:
        return HighestRateFound(met.rate_rps, met.rate_rps, None, met.run, capacity_rps, len(probes))
    while missed.rate_rps > met.rate_rps * (1 + tolerance):
        tried = probe(_between(met, missed, tolerance, by_halves=len(probes) % 3 == 0))
        met, missed = (tried, missed) if tried.is_met else (met, tried)
    return HighestRateFound(met.rate_rps, _crossing(met, missed), missed.tightest, met.run, capacity_rps, len(probes))


def _bracket(
    probe: Callable[[float], _Probe], capacity_rps: float, guess_rps: float | None, tolerance: float
) -> tuple[_Probe | None, _Probe | None]:
    """A rate that meets the targets, and a higher one that does not.

    Returns:
        Only the first if the targets are met at the capacity, only the second if they are out of reach.
    """
    was_alone = guess_rps == 0
    if was_alone and not (alone := probe(0.0)).is_met:
        return None, alone
    tried = probe(min(guess_rps or START * capacity_rps, capacity_rps))
    widen = 1 + tolerance if guess_rps else WIDEN
    while not (tried.is_met and tried.rate_rps >= capacity_rps):
        if not tried.is_met and tried.rate_rps < ALONE_BELOW * capacity_rps and not was_alone:
            was_alone = True
            if not (alone := probe(0.0)).is_met:
                return None, alone
        if not tried.is_met and tried.rate_rps < LEAST_SHARE * capacity_rps:
            return None, tried
        rate_rps = min(tried.rate_rps * widen, capacity_rps) if tried.is_met else tried.rate_rps / widen
        before, tried = tried, probe(rate_rps)
        widen = min(widen**3, WIDEST)
        if tried.is_met != before.is_met:
            return (before, tried) if before.is_met else (tried, before)
    return tried, None


def _between(met: _Probe, missed: _Probe, tolerance: float, *, by_halves: bool) -> float:
    """A rate inside the bracket: the middle, or a little beside the crossing, so that the bracket closes around it."""
    low, high = log(met.rate_rps), log(missed.rate_rps)
    if by_halves:
        return exp((low + high) / 2)
    crossing, margin = log(_crossing(met, missed)), 0.4 * log(1 + tolerance)
    beside = crossing - margin if crossing - low > high - crossing else crossing + margin
    inside = min(max(beside, low + 0.1 * (high - low)), high - 0.1 * (high - low))
    return exp(inside)


def _crossing(met: _Probe, missed: _Probe) -> float:
    """Where the straight line between the two gaps is 0, in the logarithm of the rate."""
    share = -met.gap / (missed.gap - met.gap)
    return exp((1 - share) * log(met.rate_rps) + share * log(missed.rate_rps))


def _tightest(run: Run, targets: Sequence[LatencyTarget]) -> tuple[float, LatencyTarget]:
    """The target that is nearest to its limit, or furthest beyond."""
    held = attains(run, targets).by_target
    gaps = [
        log(one.value_s / target.limit_s) if one.value_s else -100.0
        for one, target in zip(held, targets, strict=True)
    ]  # fmt: skip
    worst = max(range(len(gaps)), key=gaps.__getitem__)
    return gaps[worst], targets[worst]
