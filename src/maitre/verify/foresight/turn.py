"""The turn that a verdict proposes, simulated for the traffic that was observed."""

from __future__ import annotations

from typing import get_args

import numpy as np

from maitre.calibration import calibration_for
from maitre.errors import MaitreError
from maitre.records import Record
from maitre.setup import Setup
from maitre.verify.evidence import Evidence
from maitre.verify.foresight.credibility import ObservedFigures
from maitre.verify.foresight.expectation import Expectation, Expectations, expect
from maitre.verify.foresight.next_cells import Turn, propose_cells, smallest_that_helps
from maitre.verify.foresight.observed_traffic import observed_traffic
from maitre.verify.foresight.steady_traffic import KnownServer
from maitre.verify.load import total_in_flight
from maitre.verify.verdict import RemedyCode
from maitre.verify.window_figures import WindowFigures


class SimulatedTurn(Record):
    """What the simulator expects when the proposed dial is turned."""

    turn: Turn
    recommended: Expectation | None
    """The smallest step that helps and harms nothing; None if none of them does, or the simulator is not believed."""
    expectations: Expectations | None
    doubt: str = ""
    """Why nothing was simulated."""


def turn_for(remedy_code: RemedyCode | None) -> Turn | None:
    """The dial that a remedy turns; None for remedies of another kind."""
    return next((turn for turn in get_args(Turn) if turn == remedy_code), None)


def known_server(setup: Setup) -> KnownServer:
    """What is to be simulated: the model's shipped calibration, or a roofline.

    Raises:
        DoesNotFitError: the model leaves no room for a KV pool.
    """
    present = setup.kv_budget(setup.server.cell)
    calibration = calibration_for(setup.model, setup.gpu, setup.server, present.kv_bytes_per_token or 0)
    return KnownServer(setup.server, calibration, lambda cell: setup.kv_budget(cell).num_gpu_blocks)


def simulate_turn(turn: Turn, known: KnownServer, evidence: Evidence, seed: int) -> SimulatedTurn:
    """Simulate the next steps of a dial on the window's traffic.

    Args:
        turn: which dial, and where to.
        known: the server, at the dials in force.
        evidence: the window.
        seed: of the requests that are drawn.
    """
    whole = evidence.whole
    try:
        traffic = observed_traffic(whole, total_in_flight(evidence), num_engines=evidence.num_engines)
        pool = known.num_gpu_blocks(known.server.cell) * known.server.block_size
        long_request = _p95(whole)
        cells = propose_cells(known.server.cell, turn, kv_tokens=pool, request_tokens=long_request)
        expected = expect(traffic, known, observed_figures(evidence), cells, seed=seed)
    except MaitreError as error:
        return SimulatedTurn(turn=turn, recommended=None, expectations=None, doubt=str(error.args[0]))
    return SimulatedTurn(turn=turn, recommended=smallest_that_helps(expected, turn), expectations=expected)


def observed_figures(evidence: Evidence) -> ObservedFigures:
    """What one engine showed."""
    whole, engines = evidence.whole, evidence.num_engines
    return ObservedFigures(
        running=None if whole.running is None else whole.running / engines,
        waiting=None if whole.waiting is None else whole.waiting / engines,
        kv_usage=whole.kv_usage,
        itl_mean_s=None if whole.itl is None else whole.itl.mean,
        ttft_mean_s=None if whole.ttft is None else whole.ttft.mean,
    )


def _p95(whole: WindowFigures) -> float | None:
    """Tokens of a long request: the buckets' bounds that 95 % of prompts and answers do not exceed."""
    parts = []
    for lengths in (whole.prompt_lengths, whole.output_lengths):
        if lengths is None or not lengths.count:
            return None
        reached = np.cumsum(lengths.counts) >= 0.95 * lengths.count
        bound = float(lengths.upper[int(np.argmax(reached))])
        parts.append(bound if np.isfinite(bound) else float(lengths.upper[-2]))
    return sum(parts)
