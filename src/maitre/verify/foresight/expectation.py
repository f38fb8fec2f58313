"""What a turn of the dials would change for the observed traffic, by the simulator.

The present cell and the candidates serve the same requests with the same steps, so that what is not known of the server
mostly cancels in their ratio. What does not cancel makes the interval: the step time in the one direction that is left
when the observed inter-token latency is known, each cell's own error, and another sample of the traffic, in which
lengths go together and arrivals come in bunches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import Calibration
from maitre.calibration.doubt import LENGTH_OCTAVES, leading_directions
from maitre.errors import DoesNotFitError
from maitre.records import AtCell, Cell, Record
from maitre.verify.foresight.credibility import SAME_ITL, Credibility, ObservedFigures, hold_against
from maitre.verify.foresight.observed_traffic import ObservedTraffic
from maitre.verify.foresight.settled import CellFigures
from maitre.verify.foresight.steady_traffic import KnownServer, SteadyTraffic

Array = NDArray[np.float64]

ANCHOR_SD = 0.03
"""Relative spread of an observed mean inter-token latency around that of the same number of running requests in the
simulator: a window's running requests vary, the simulator's do not. Assumed."""
LENGTH_CORRELATION, ARRIVAL_SHAPE = 0.3, 0.5
"""What the metrics do not show, taken otherwise: lengths that go together, and arrivals in bunches whose count varies
by twice the variance of independent ones (gamma-distributed gaps)."""
LEAST = {"waiting": 0.1, "preemptions_per_min": 1.0, "kv_usage": 1e-3}
"""Below these a figure of a few minutes is as good as 0: the present one has no ratio, and no interval ends lower."""
CHANGING = (
    "capacity_rps", "requests_per_s", "output_tokens_per_s", "running", "waiting", "kv_usage", "preemptions_per_min",
    "itl_mean_s", "itl_p50_s", "itl_p99_s", "ttft_mean_s", "ttft_p50_s", "ttft_p95_s",
)  # fmt: skip
"""The figures of `CellFigures` that are compared."""


class Change(Record):
    """A figure of a candidate over that of the present cell, with a 95 % interval."""

    ratio: float
    low: float
    high: float | None
    """None: no bound, since with some of the step times that are possible the queue grows."""


class Expectation(AtCell):
    """One candidate."""

    figures: CellFigures
    keeps_up_surely: bool
    """With every step time and sample tried the queue comes to rest, or with none."""
    changes: dict[str, Change]
    """By the names of `CellFigures`; those without a ratio are left out."""


class Expectations(Record):
    """What the simulator expects of the present cell and of the candidates."""

    present: Cell
    figures: CellFigures | None
    """Of the present cell; None if they are not used."""
    candidates: tuple[Expectation, ...]
    infeasible: dict[str, str]
    """Cells (`str(Cell)`) that cannot serve this traffic, and why."""
    credibility: Credibility
    assumptions: tuple[str, ...]

    @property
    def withheld(self) -> str:
        """Why there are no figures; empty if there are."""
        return self.credibility.doubt


@dataclass(frozen=True, slots=True)
class _Variant:
    """One way the world may be."""

    simulated: SteadyTraffic
    coefficients: Array
    own: dict[Cell, float]
    """Logarithm of how much longer the steps of single cells are."""

    def figures(self, cell: Cell) -> CellFigures:
        return self.simulated.figures(cell, self.coefficients * exp(self.own.get(cell, 0.0)))


def expect(
    traffic: ObservedTraffic,
    known: KnownServer,
    observed: ObservedFigures,
    candidates: Sequence[Cell],
    *,
    seed: int = 0,
) -> Expectations:
    """Simulate the present cell and the candidates on the observed traffic.

    Args:
        traffic: of one engine.
        known: the server; its dials are the present cell.
        observed: what the engine showed at the present cell.
        candidates: other cells, a few.
        seed: of the requests and their arrivals.

    Raises:
        InputError: the lengths do not go with the server's max_model_len.
        DoesNotFitError: the present cell's pool does not hold a request.
    """
    present, calibration = known.server.cell, known.calibration
    simulated = SteadyTraffic(traffic, known, seed)
    simulated.check(present)
    credibility = hold_against(simulated, calibration, observed)
    told = _assumptions(traffic, simulated, calibration, credibility)
    if credibility.doubt:
        return Expectations(
            present=present, figures=None, candidates=(), infeasible={}, credibility=credibility, assumptions=told
        )
    feasible, infeasible = _sort_out(simulated, [cell for cell in candidates if cell != present])
    best = _Variant(simulated, calibration.step_time.coefficients * credibility.scale, {})
    others = _variants(best, traffic, known, credibility, feasible, seed)
    tried = [{cell: variant.figures(cell) for cell in (present, *feasible)} for variant in (best, *others)]
    return Expectations(
        present=present,
        figures=tried[0][present],
        candidates=tuple(_expectation(cell, present, tried) for cell in feasible),
        infeasible=infeasible,
        credibility=credibility,
        assumptions=told,
    )


def _sort_out(simulated: SteadyTraffic, cells: Sequence[Cell]) -> tuple[list[Cell], dict[str, str]]:
    """The cells whose pool holds every request, and what is wrong with the others."""
    feasible, infeasible = [], {}
    for cell in dict.fromkeys(cells):
        try:
            simulated.check(cell)
            feasible.append(cell)
        except DoesNotFitError as error:
            infeasible[str(cell)] = str(error.args[0])
    return feasible, infeasible


def _variants(
    best: _Variant, traffic: ObservedTraffic, known: KnownServer, credibility: Credibility, cells: Sequence[Cell],
    seed: int,
) -> list[_Variant]:  # fmt: skip
    """Other step times, another sample and errors of single cells, each one standard deviation away.

    Where the prefix cache has to be simulated, which takes several times as long, all of them at once in two runs.
    """
    present, theta = known.server.cell, best.coefficients
    shares = best.simulated.time_shares(present, theta)
    covariance = np.array(known.calibration.covariance)
    if credibility.is_anchored:
        covariance = _given_total(covariance, shares)
    each = np.stack([shares, *(best.simulated.time_shares(cell, theta) for cell in cells)])
    steps = leading_directions(covariance, each, 1)
    faster, slower = (theta * np.exp(sign * steps.sum(axis=0)) for sign in (-1, 1))
    own = {cell: _own_sd(known.calibration, present, cell) for cell in cells}
    other = SteadyTraffic(traffic, known, seed + 1, length_correlation=LENGTH_CORRELATION, arrival_shape=ARRIVAL_SHAPE)
    if traffic.has_prefixes:
        less = {cell: -sd for cell, sd in own.items()}
        return [_Variant(other, slower, own), _Variant(best.simulated, faster, less)]
    return [
        _Variant(best.simulated, faster, {}),
        _Variant(best.simulated, slower, {}),
        _Variant(best.simulated, theta, own),
        _Variant(other, theta, {}),
    ]


def _given_total(covariance: Array, shares: Array) -> Array:
    """The covariance of log θ when the time of all steps together is known: Gaussian conditioning on shares · log θ."""
    with_total = covariance @ shares
    known: Array = covariance - np.outer(with_total, with_total) / (shares @ with_total + ANCHOR_SD**2)
    return known


def _own_sd(calibration: Calibration, present: Cell, cell: Cell) -> float:
    """Standard deviation of what a cell's time is off by beyond that of the present cell."""
    octaves = np.log2(
        [cell.max_num_seqs / present.max_num_seqs, cell.max_num_batched_tokens / present.max_num_batched_tokens]
    )
    alike = exp(-float(octaves @ octaves) / (2 * LENGTH_OCTAVES**2))
    return calibration.cell_sd * sqrt(2 * (1 - alike))


def _expectation(cell: Cell, present: Cell, tried: Sequence[dict[Cell, CellFigures]]) -> Expectation:
    figures = tried[0][cell]
    changes = {name: change for name in CHANGING if (change := _change(name, cell, present, tried)) is not None}
    return Expectation(
        **cell.model_dump(),
        figures=figures,
        keeps_up_surely=len({one[cell].keeps_up for one in tried}) == 1,
        changes=changes,
    )


def _change(name: str, cell: Cell, present: Cell, tried: Sequence[dict[Cell, CellFigures]]) -> Change | None:
    first, *others = (_log_ratio(name, one[cell], one[present]) for one in tried)
    if first is None:
        return None
    known = [other - first for other in others if other is not None]
    spread = 1.96 * sqrt(sum(change**2 for change in known))
    now = getattr(tried[0][present], name)
    ratio = getattr(tried[0][cell], name) / now
    high = max(ratio * exp(spread), LEAST.get(name, 0.0) / now) if len(known) == len(others) else None
    return Change(ratio=ratio, low=ratio * exp(-spread), high=high)


def _log_ratio(name: str, here: CellFigures, now: CellFigures) -> float | None:
    """Logarithm of the ratio; None where one figure is not there, or the present one is as good as 0."""
    least = LEAST.get(name, 0.0)
    one, other = getattr(here, name), getattr(now, name)
    if one is None or other is None or other <= least:
        return None
    return log(max(one, least, 1e-12) / other)


def _assumptions(
    traffic: ObservedTraffic, simulated: SteadyTraffic, calibration: Calibration, credibility: Credibility
) -> tuple[str, ...]:
    told = [_arrivals(traffic, simulated), "prompt and output lengths are independent of each other"]
    if traffic.has_prefixes:
        share = f"{traffic.prefix_hit_rate:.0%}"
        told.append(f"the prefix cache answers {share} of the prompt tokens in every cell: one prefix that all share")
    told.append(f"step time: {calibration.summary}")
    if credibility.is_anchored and not 1 / SAME_ITL <= credibility.scale <= SAME_ITL:
        itl = credibility.checks[0]
        told.append(
            f"every step lasts {credibility.scale:.2f} times as long as that says: the server shows an inter-token "
            f"latency of {1000 * itl.observed:.3g} ms where {1000 * itl.expected:.3g} ms were expected"
            + (", and its queue comes to rest" if itl.observed / itl.expected > 1.01 * credibility.scale else "")
        )
    return (*told, credibility.ttft_doubt) if credibility.ttft_doubt else tuple(told)


def _arrivals(traffic: ObservedTraffic, simulated: SteadyTraffic) -> str:
    if simulated.loop == "open":
        return f"requests come independently of each other and of the server, {traffic.arrival_rps:.3g} a second"
    if simulated.loop == "closed":
        return f"{simulated.num_in_flight} clients, each of which sends its next request when it has its answer"
    return "a queue is worked off: throughput is what a cell can do, and waiting is as long as the queue"
