"""The next steps of a dial, and the smallest one that does what it is turned for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from maitre.records import Cell
from maitre.verify.foresight.expectation import Expectation, Expectations
from maitre.verify.foresight.settled import CellFigures

Turn = Literal["raise-max-num-seqs", "lower-max-num-seqs", "raise-token-budget", "lower-token-budget"]

LARGEST_SEQS, LARGEST_TOKENS, SMALLEST_TOKENS = 1024, 65_536, 256
"""vLLM's largest default of max_num_seqs, beyond the largest CUDA graph; and the ends of the ladder of budgets."""
GRAPH_STEP = 8
"""Captured batch sizes are multiples of 8 (`vllm/config`: `_set_cudagraph_sizes`), and other limits leave the top batch
sizes without a full graph (vLLM#57355)."""

ALMOST_NONE = 0.1
"""Of what is to go: so much of it may be left."""
FEW_WAITING = 1.0
SHORTER = 0.8
"""A latency that is to fall falls to this share at least."""
SAME_THROUGHPUT, SAME_BEST = 0.98, 0.98
WORSE_TAIL = 1.5
"""Of the other latency: it may grow by this factor."""


def propose_cells(
    present: Cell, turn: Turn, *, kv_tokens: int | None = None, request_tokens: float | None = None
) -> list[Cell]:
    """The next cells in one direction, the smallest step first.

    A step doubles or halves the dial. max_num_seqs also goes to as many requests as the pool holds. vLLM refuses a
    token budget below max_num_seqs (`config/scheduler.py`): it is raised with it, and never lowered below it.

    Args:
        present: the dials in force.
        turn: which dial, and where to.
        kv_tokens: of the pool of one engine.
        request_tokens: of a long request, prompt and output, such as the 95th percentile.
    """
    seqs, tokens = present.max_num_seqs, present.max_num_batched_tokens
    match turn:
        case "raise-max-num-seqs" | "lower-max-num-seqs":
            raises = turn == "raise-max-num-seqs"
            steps = [2 * seqs, 4 * seqs] if raises else [seqs // 2, seqs // 4]
            if kv_tokens is not None and request_tokens:
                held = _to_graph(kv_tokens / request_tokens)
                steps += [held, *([8 * seqs] if raises and held > 8 * seqs else [])]
            beyond = sorted({s for s in steps if (s > seqs if raises else 0 < s < seqs)}, reverse=not raises)
            return [_cell(s, max(s, tokens)) for s in beyond if s <= max(LARGEST_SEQS, seqs)]
        case "raise-token-budget":
            return [_cell(seqs, t) for t in (2 * tokens, 4 * tokens) if t <= max(LARGEST_TOKENS, tokens)]
        case "lower-token-budget":
            least = max(seqs, SMALLEST_TOKENS)
            return [_cell(seqs, t) for t in (tokens // 2, tokens // 4, tokens // 8) if least <= t < tokens]


def smallest_that_helps(expectations: Expectations, turn: Turn) -> Expectation | None:
    """The smallest step that does what the dial is turned for and harms nothing else; None if none of them does.

    raise-max-num-seqs: nobody waits for a slot any more, or with a queue that always is there throughput is within 2 %
    of the best step's. lower-max-num-seqs: nine preemptions of ten are gone, throughput stays. raise-token-budget: time
    to first token falls by a fifth. lower-token-budget: the 99th percentile of the inter-token latency does. The other
    latency may grow by half at most, and a server that keeps up has to go on doing so.

    Args:
        expectations: of the cells of `propose_cells`.
        turn: which dial, and where to.
    """
    now = expectations.figures
    if now is None:
        return None
    best = max((one.figures.output_tokens_per_s for one in expectations.candidates), default=0.0)
    helps = _goal(turn, now, best)
    fit = (one for one in expectations.candidates if helps(one.figures) and _harms_nothing(one, now))
    return min(fit, key=lambda one: _distance(one.cell, expectations.present), default=None)


def _goal(turn: Turn, now: CellFigures, best: float) -> Callable[[CellFigures], bool]:
    match turn:
        case "raise-max-num-seqs":
            return lambda then: _waits_no_more(then, now, best)
        case "lower-max-num-seqs":
            return lambda then: then.preemptions_per_min <= ALMOST_NONE * now.preemptions_per_min
        case "raise-token-budget":
            return lambda then: _falls(then.ttft_p95_s, now.ttft_p95_s) or _gains(then, now, best)
        case "lower-token-budget":
            return lambda then: _falls(then.itl_p99_s, now.itl_p99_s)


def _waits_no_more(then: CellFigures, now: CellFigures, best: float) -> bool:
    if then.waiting is not None and then.waiting <= FEW_WAITING and now.waiting != then.waiting:
        return True
    return _gains(then, now, best)


def _gains(then: CellFigures, now: CellFigures, best: float) -> bool:
    """More throughput than now, and about as much as the best step has."""
    more = then.output_tokens_per_s > now.output_tokens_per_s / SAME_THROUGHPUT
    return more and then.output_tokens_per_s >= SAME_BEST * best


def _harms_nothing(one: Expectation, now: CellFigures) -> bool:
    then = one.figures
    return (
        then.output_tokens_per_s >= SAME_THROUGHPUT * now.output_tokens_per_s
        and (then.keeps_up or not now.keeps_up)
        and not _grows(then.ttft_p95_s, now.ttft_p95_s)
        and not (_grows(then.itl_p99_s, now.itl_p99_s) and not _busier(then, now))
    )


def _busier(then: CellFigures, now: CellFigures) -> bool:
    """More requests run at once, which a longer inter-token latency is the price of."""
    return then.running > now.running


def _falls(then: float | None, now: float | None) -> bool:
    return then is not None and now is not None and then <= SHORTER * now


def _grows(then: float | None, now: float | None) -> bool:
    return then is not None and now is not None and then > WORSE_TAIL * now


def _distance(cell: Cell, present: Cell) -> float:
    """How far the dials are turned, as a factor."""
    pairs = (
        (cell.max_num_seqs, present.max_num_seqs),
        (cell.max_num_batched_tokens, present.max_num_batched_tokens),
    )
    return max(max(one / other, other / one) for one, other in pairs)


def _to_graph(seqs: float) -> int:
    """Rounded down to a captured batch size; at least 1."""
    return max(1, int(seqs) if seqs < GRAPH_STEP else int(seqs) // GRAPH_STEP * GRAPH_STEP)


def _cell(seqs: int, tokens: int) -> Cell:
    return Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens)
