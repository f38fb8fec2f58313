"""The turn that a verdict proposes, simulated for the traffic that was observed."""

from __future__ import annotations

from typing import get_args

import numpy as np

from maitre.calibration import calibration_for
from maitre.errors import InputError, MaitreError
from maitre.records import Record, ServerConfig
from maitre.setup import Setup
from maitre.verify.deployment import Deployment
from maitre.verify.evidence import Evidence
from maitre.verify.foresight.credibility import ObservedFigures
from maitre.verify.foresight.expectation import Expectation, Expectations, expect
from maitre.verify.foresight.fitted_steps import fit_windows
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


def fitted_server(deployment: Deployment, evidence: Evidence) -> KnownServer:
    """What is to be simulated when only the window itself is known: its own sub-windows tell how long steps are.

    Raises:
        InputError: the limits or the pool are not known, or the load hardly changes within the window.
    """
    known, pool = deployment, evidence.pool_tokens
    seqs, tokens, blocks, size = known.seqs_limit, known.tokens_limit, known.num_gpu_blocks, known.block_size
    if seqs is None or tokens is None or blocks is None or size is None or pool is None:
        raise InputError("the limits or the KV pool are not known", "name them, or --model and --gpu")
    server = ServerConfig(
        model=known.model or "model",
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=known.max_model_len or int(pool),
        block_size=size,
    )
    calibration = fit_windows(evidence.parts, server, pool, evidence.num_engines)
    per_engine = blocks // evidence.num_engines
    return KnownServer(server, calibration, lambda _: per_engine, only_means=True)


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
        expected = expect(traffic, known, ObservedFigures.of(whole, evidence.num_engines), cells, seed=seed)
    except MaitreError as error:
        return SimulatedTurn(turn=turn, recommended=None, expectations=None, doubt=str(error.args[0]))
    return SimulatedTurn(turn=turn, recommended=smallest_that_helps(expected, turn), expectations=expected)


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
