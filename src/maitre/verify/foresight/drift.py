"""Production against the study it was tuned by: whether the traffic has drifted so far that tuning again pays.

How far two samples of traffic are apart says little about that. The study's own grid is simulated on the observed
traffic, and what counts is by how much its best cell beats the deployed one there, by what the study looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from maitre.metric_series import Histogram
from maitre.records import Cell, Record, Workload
from maitre.verify.foresight.credibility import Credibility, ObservedFigures, hold_against
from maitre.verify.foresight.drift_gain import Gain, best_gain
from maitre.verify.foresight.observed_traffic import ObservedTraffic
from maitre.verify.foresight.settled import CellFigures
from maitre.verify.foresight.steady_traffic import SteadyTraffic
from maitre.verify.foresight.studied_server import StudiedServer
from maitre.workload.arrivals import own_rate_rps

WORTH = 2.0
"""A gain of so many times what the study calls equally good is worth another tuning."""
SAME = 0.1
"""Lengths and rates that differ by less, relative to the study's, are not worth a word."""
WORDS = {"prompt_tokens": "prompts are", "output_tokens": "outputs are", "rate_rps": "the rate is"}
MORE = {
    "prompt_tokens": ("longer", "shorter"),
    "output_tokens": ("longer", "shorter"),
    "rate_rps": ("higher", "lower"),
}


class TrafficChange(Record):
    """One property of the traffic, in the study and in production. None: not known."""

    name: Literal["prompt_tokens", "prompt_tokens_p90", "output_tokens", "output_tokens_p90", "rate_rps"]
    """Means, and 90th percentiles: in production those of buckets, interpolated."""
    studied: float | None
    observed: float
    change: float | None
    """Observed over studied, minus 1."""


class Drift(Record):
    """What `maitre verify --study` says."""

    deployed: Cell
    verdict: Literal["tune-again", "keep", "cannot-tell"]
    reason: str
    studied: CellFigures
    """What the study expects of the deployed cell with the lengths it was tuned for, at the observed load …"""
    expected: CellFigures | None = None
    """… and with the lengths that were observed. None: its figures are not used."""
    observed: ObservedFigures
    credibility: Credibility
    """Of the study's step times, held against the observation."""
    traffic: tuple[TrafficChange, ...]
    best: Cell | None = None
    """Of the study's grid on the observed traffic; None if the study cannot tell."""
    gain: float | None = None
    """What the study looked for at the best cell over the deployed one, minus 1."""
    gain_low: float | None = None
    """95 % interval."""
    gain_high: float | None = None
    load: float | None = None
    """Observed arrivals over what the deployed cell can serve of such requests."""


def find_drift(studied: StudiedServer, traffic: ObservedTraffic, observed: ObservedFigures, *, seed: int = 0) -> Drift:
    """Hold production against a study.

    Args:
        studied: the study, with the dials of the deployed cell.
        traffic: of one engine.
        observed: what that engine showed.
        seed: of all draws.

    Raises:
        InputError: the lengths do not go with the server's max_model_len.
        DoesNotFitError: the deployed cell's pool does not hold a request.
    """
    known, deployed = studied.known, studied.known.server.cell
    simulated = SteadyTraffic(traffic, known, seed)
    simulated.check(deployed)
    theta = known.calibration.step_time.coefficients
    credibility = hold_against(simulated, known.calibration, observed)
    before = SteadyTraffic(_as_studied(studied.workload, traffic), known, seed).figures(deployed, theta)
    found = Drift(
        deployed=deployed, verdict="cannot-tell", reason=credibility.doubt, studied=before, observed=observed,
        credibility=credibility, traffic=_changes(studied.workload, traffic, simulated.workload),
    )  # fmt: skip
    if credibility.doubt:
        return found
    theta = theta * credibility.scale
    expected, gain = simulated.figures(deployed, theta), best_gain(studied, traffic, theta, seed)
    found = found.model_copy(
        update={
            "expected": expected,
            "best": gain.best,
            "gain": gain.gain,
            "gain_low": gain.low,
            "gain_high": gain.high,
            "load": traffic.arrival_rps / expected.capacity_rps,
        }
    )
    pays = _pays(gain, deployed, studied.study.recommendation.epsilon)
    return found.model_copy(update={"verdict": "tune-again" if pays else "keep", "reason": _reason(found, pays=pays)})


def _pays(gain: Gain, deployed: Cell, epsilon: float) -> bool:
    """Whether another tuning is worth it.

    Where the deployed cell meets no targets, it is if another one does; else the gain has to be large, and five times
    as likely as a loss: its interval reaches less far below zero than the gain is above.
    """
    if gain.gain is None or gain.low is None:
        return gain.best != deployed
    return gain.gain >= WORTH * epsilon and gain.low > -gain.gain


def _as_studied(workload: Workload, traffic: ObservedTraffic) -> ObservedTraffic:
    """The study's lengths, as independent of each other as the observed ones, at the observed load."""
    prompt, output = (_exact(lengths) for lengths in (workload.prompt_tokens, workload.output_tokens))
    return replace(traffic, prompt_lengths=prompt, output_lengths=output)


def _exact(lengths: NDArray[np.int64]) -> Histogram:
    """A bucket for each length that occurs."""
    values, counts = np.unique(lengths, return_counts=True)
    return Histogram(np.append(values, np.inf).astype(float), np.append(counts, 0).astype(float), float(lengths.sum()))


def _changes(studied: Workload, traffic: ObservedTraffic, observed: Workload) -> tuple[TrafficChange, ...]:
    lengths = (
        ("prompt_tokens", studied.prompt_tokens, observed.prompt_tokens),
        ("output_tokens", studied.output_tokens, observed.output_tokens),
    )
    rows = [(name, float(before.mean()), float(now.mean())) for name, before, now in lengths]
    rows += [(f"{name}_p90", _p90(before), _p90(now)) for name, before, now in lengths]
    changes = [TrafficChange(name=name, studied=was, observed=now, change=now / was - 1) for name, was, now in rows]
    has_rate = studied.arrival_s is not None and studied.arrival_s[-1] > studied.arrival_s[0]
    rate_rps = own_rate_rps(studied) if has_rate else None
    change = None if rate_rps is None else traffic.arrival_rps / rate_rps - 1
    return (*changes, TrafficChange(name="rate_rps", studied=rate_rps, observed=traffic.arrival_rps, change=change))


def _p90(lengths: NDArray[np.int64]) -> float:
    return float(np.percentile(lengths, 90))


def _reason(found: Drift, *, pays: bool) -> str:
    return f"{_what_changed(found.traffic)}; {_what_it_means(found, pays=pays)}"


def _what_changed(changes: Sequence[TrafficChange]) -> str:
    said = [
        f"{WORDS[one.name]} {abs(one.change):.0%} {MORE[one.name][one.change < 0]}"
        for one in changes
        if one.name in WORDS and one.change is not None and abs(one.change) >= SAME
    ]
    return f"against the study's traffic {', '.join(said)}" if said else "the traffic is much as it was in the study"


def _what_it_means(found: Drift, *, pays: bool) -> str:
    if found.gain is None or found.gain_low is None or found.gain_high is None or found.best is None:
        if pays:
            return (
                f"{found.deployed} no longer meets the study's targets at any rate, and {found.best} does: tune again"
            )
        return (
            "no cell of the study's grid meets its targets on this traffic: tune with other targets, or a larger grid"
        )
    interval = f"{found.gain_low:+.1%} to {found.gain_high:+.1%}"
    if pays:
        sure = "" if found.gain_low > 0 else ", which is not sure"
        return f"{found.best} should gain {found.gain:.1%} on it over {found.deployed} ({interval}){sure}: tune again"
    if found.best == found.deployed:
        return f"{found.deployed} is still the best of the study's grid: keep it"
    return (
        f"the best of the study's grid, {found.best}, would gain {found.gain:.1%} ({interval}): keep {found.deployed}"
    )
