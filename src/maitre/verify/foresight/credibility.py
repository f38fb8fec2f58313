"""Whether the simulator can be believed about a server: what it expects of the present cell against what was observed.

The inter-token latency at the observed number of running requests tells how long the server's steps are. The
simulator's steps are made longer or shorter by that ratio, if its calibration leaves room for it; after that the number
of running requests and the KV usage have to come out as observed, which they do not where the lengths, the rate or the
pool are not what they are taken for.
"""

from __future__ import annotations

from math import exp, log
from typing import Self

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import Calibration
from maitre.records import Record
from maitre.verify.foresight.settled import CellFigures
from maitre.verify.foresight.steady_traffic import SteadyTraffic
from maitre.verify.window_figures import WindowFigures

Array = NDArray[np.float64]

LEAST_ROOM, MOST_ROOM = 1.25, 1.5
"""Observed steps may be longer or shorter than expected by this factor at least, and at most, whatever the calibration
says of itself. Simulators of the field are off by 13 to 45 % on GPUs that they were not fitted to (modelling notes)."""
AS_FULL = 1.1
"""Within this factor of the observed running requests a cell that always has somebody waiting is as full as it can be:
its preemptions are then part of the latency."""
SAME_ITL = 1.05
"""Closer than this the scale is not worth a word."""
RUNNING_ROOM, KV_ROOM, TTFT_ROOM = 1.35, 1.35, 2.0
"""Factors within which the other figures have to come out. A window is short, and its arrivals are not Poisson."""
HIGH_LOAD, NEAR_CAPACITY = 0.97, 1.1
"""A server whose queue comes to rest has a load below 1 whatever its steps seem to be: they are taken to be as much as
10 % shorter for that, down to a load of 0.97."""
FEW_REQUESTS, LITTLE_KV, SHORT_TTFT_S = 1.0, 0.05, 0.1
"""Differences below these prove nothing."""


class Check(Record):
    """One figure of the present cell."""

    name: str
    """As in `CellFigures`."""
    expected: float
    observed: float
    holds: bool


class Credibility(Record):
    """What the comparison says."""

    scale: float
    """Of all step times: observed over expected inter-token latency; 1 where none was observed."""
    is_anchored: bool
    """The scale was observed, not assumed."""
    checks: tuple[Check, ...]
    doubt: str
    """Why the simulator's figures are not used; empty if they are."""
    ttft_doubt: str = ""
    """Why its times to first token are not."""


class ObservedFigures(Record):
    """What one engine showed in the window; None: not exposed."""

    running: float | None = None
    """Requests, over time, as is the next one."""
    waiting: float | None = None
    kv_usage: float | None = None
    """0 to 1."""
    itl_mean_s: float | None = None
    ttft_mean_s: float | None = None
    preemptions_per_min: float | None = None
    output_tokens_per_s: float | None = None

    @classmethod
    def of(cls, figures: WindowFigures, num_engines: int = 1) -> Self:
        """From a window's figures over so many engines."""

        def each(total: float | None) -> float | None:
            return None if total is None else total / num_engines

        preemptions, span_s = figures.preemptions, figures.duration_s
        return cls(
            running=each(figures.running),
            waiting=each(figures.waiting),
            kv_usage=figures.kv_usage,
            itl_mean_s=figures.itl and figures.itl.mean,
            ttft_mean_s=figures.ttft and figures.ttft.mean,
            preemptions_per_min=each(60 * preemptions / span_s) if preemptions is not None and span_s else None,
            output_tokens_per_s=each(figures.output_tokens_per_s),
        )


def hold_against(simulated: SteadyTraffic, calibration: Calibration, observed: ObservedFigures) -> Credibility:
    """Compare the present cell's simulation with the observation.

    Args:
        simulated: the traffic on the server; its present cell counts.
        calibration: the step time as it is known before.
        observed: what the server showed.
    """
    coefficients = calibration.step_time.coefficients
    scale, itl = _scale(simulated, coefficients, observed)
    checks = [] if itl is None else [itl]
    room = min(max(exp(1.96 * _time_sd(simulated, calibration)), LEAST_ROOM), MOST_ROOM)
    if itl is not None and not 1 / room <= scale <= room:
        doubt = (
            f"the simulator expects an inter-token latency of {_ms(itl.expected)} at {observed.running:.0f} running "
            f"requests, the server shows {_ms(itl.observed)}: its figures are not used"
        )
        missed = itl.model_copy(update={"holds": False})
        return Credibility(scale=scale, is_anchored=True, checks=(missed,), doubt=doubt)
    scale = min(scale, max(_scale_that_keeps_up(simulated, coefficients), scale / NEAR_CAPACITY))
    here = simulated.figures(simulated.present, coefficients * scale)
    checks += _other_checks(here, observed)
    return Credibility(
        scale=scale,
        is_anchored=itl is not None,
        checks=tuple(checks),
        doubt=_doubt(checks, here, observed),
        ttft_doubt=_ttft_doubt(here, observed),
    )


def _time_sd(simulated: SteadyTraffic, calibration: Calibration) -> float:
    """Relative standard deviation of the present cell's steps as the calibration knows them."""
    shares = simulated.time_shares(simulated.present, calibration.step_time.coefficients)
    by_coefficients = float(shares @ np.array(calibration.covariance) @ shares) ** 0.5
    return max(float(np.hypot(by_coefficients, calibration.cell_sd)), calibration.time_sd)


def _scale(simulated: SteadyTraffic, coefficients: Array, observed: ObservedFigures) -> tuple[float, Check | None]:
    """Observed over expected inter-token latency at the observed number of running requests."""
    if not observed.itl_mean_s or not observed.running:
        return 1.0, None
    full = simulated.at_concurrency(simulated.present, coefficients, simulated.present.max_num_seqs)
    expected = full.itl_mean_s
    varies = simulated.loop == "open" and simulated.traffic.is_at_rest
    if varies or full.running > AS_FULL * observed.running:
        # a token sees more requests running than there are on average: with independent arrivals, one more
        crowd = max(1, round(observed.running + (simulated.loop == "open")))
        expected = simulated.at_concurrency(simulated.present, coefficients, crowd).itl_mean_s
    if expected is None:
        return 1.0, None
    scale = observed.itl_mean_s / expected
    return scale, Check(name="itl_mean_s", expected=expected, observed=observed.itl_mean_s, holds=True)


def _scale_that_keeps_up(simulated: SteadyTraffic, coefficients: Array) -> float:
    """The longest steps with which the present cell serves all that come, where that is what it was seen to do."""
    traffic = simulated.traffic
    if simulated.loop != "open" or not traffic.is_at_rest:
        return np.inf
    full = simulated.at_concurrency(simulated.present, coefficients, simulated.present.max_num_seqs)
    return HIGH_LOAD * full.capacity_rps / traffic.arrival_rps


def _other_checks(here: CellFigures, observed: ObservedFigures) -> list[Check]:
    rows = (
        ("running", here.running, observed.running, RUNNING_ROOM, FEW_REQUESTS),
        ("kv_usage", here.kv_usage, observed.kv_usage, KV_ROOM, LITTLE_KV),
        ("ttft_mean_s", here.ttft_mean_s, observed.ttft_mean_s, TTFT_ROOM, SHORT_TTFT_S),
    )
    return [
        Check(name=name, expected=expected, observed=seen, holds=_is_near(expected, seen, factor, least))
        for name, expected, seen, factor, least in rows
        if expected is not None and seen is not None
    ]


def _is_near(expected: float, observed: float, factor: float, least: float) -> bool:
    if abs(expected - observed) <= least:
        return True
    return min(expected, observed) > 0 and abs(log(expected / observed)) <= log(factor)


def _doubt(checks: list[Check], here: CellFigures, observed: ObservedFigures) -> str:
    by_name = {check.name: check for check in checks if not check.holds}
    if (off := by_name.get("running")) is not None:
        more = "" if here.keeps_up else ", and a queue that grows"
        return (
            f"the simulator expects {off.expected:.0f} running requests{more}, the server shows {off.observed:.0f}: "
            "the lengths or the rate of the window are not those of the traffic, and its figures are not used"
        )
    if (off := by_name.get("kv_usage")) is not None:
        return (
            f"the simulator expects a KV usage of {off.expected:.0%}, the server shows {off.observed:.0%}: the pool or "
            "the lengths are not what they are taken for, and its figures are not used"
        )
    if not here.keeps_up and observed.waiting is not None and observed.waiting < FEW_REQUESTS:
        return "the simulator expects a queue that grows, and on the server nobody waits: its figures are not used"
    return ""


def _ttft_doubt(here: CellFigures, observed: ObservedFigures) -> str:
    expected, seen = here.ttft_mean_s, observed.ttft_mean_s
    if expected is None or seen is None or _is_near(expected, seen, TTFT_ROOM, SHORT_TTFT_S):
        return ""
    why = "arrivals come in bunches, or the time is spent before the scheduler" if seen > expected else "not known"
    return (
        f"the simulator expects a mean time to first token of {_ms(expected)}, the server shows {_ms(seen)} ({why}): "
        "only its changes count, not its size"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
