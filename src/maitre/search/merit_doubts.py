"""Doubts about a highest rate or a least latency, each with a remedy; and what else could be had instead."""

from __future__ import annotations

from collections.abc import Sequence

from maitre.records import Finding, Objective, Recommendation, Trial
from maitre.search.recommend_merit import meets_targets
from maitre.units import format_seconds

STAYS = 4
"""A run that is shorter than so many median stays of a request has hardly left its ramp (the modelling notes ask for
four requests a slot for the same reason)."""
SMALLEST_BUDGET = 512
"""Tokens; below, a step's fixed cost weighs more than its prompt chunk does."""
MAX_NEIGHBOURS = 2
BETTER_BY = 0.05
"""Another cell is named if one of its latencies is lower by this share."""


def doubt_merits(objective: Objective, trials: Sequence[Trial], answer: Recommendation) -> list[Finding]:
    """What may be wrong with the answer, or better for other tastes.

    Args:
        objective: a rate or a latency.
        trials: one a cell.
        answer: the recommendation.
    """
    chosen = next(trial for trial in trials if trial.cell == answer.recommended)
    if not any(meets_targets(objective, trial) for trial in trials):
        return _out_of_reach(objective)
    if objective.kind == "rate":
        plateau = [trial for trial in trials if trial.cell in {*answer.plateau, answer.recommended}]
        return _short_run(chosen) + _edge_of_grid(trials, plateau)
    return _overload(chosen) + _trade_offs(objective, trials, chosen)


def _out_of_reach(objective: Objective) -> list[Finding]:
    return [
        Finding(
            code="targets-out-of-reach",
            message=f"no cell of the grid meets {' and '.join(objective.targets)}",
            remedy="ask for less, try smaller token budgets if it is a time between tokens, or a faster GPU",
        )
    ]


def _short_run(chosen: Trial) -> list[Finding]:
    assert chosen.highest_rate is not None
    assert chosen.e2e_s is not None
    rate_rps, stay_s = chosen.highest_rate.rate_rps, chosen.e2e_s.p50
    length_s = chosen.num_requests / rate_rps
    if length_s >= STAYS * stay_s:
        return []
    enough = int(1.1 * STAYS * stay_s * rate_rps) + 1
    return [
        Finding(
            code="short-run",
            message=f"{chosen.num_requests} requests at {rate_rps:.3g} a second last {format_seconds(length_s)}, and "
            f"half of them stay for {format_seconds(stay_s)} or more: the server is hardly ever as full as it would be",
            remedy=f"take at least {enough} requests",
        )
    ]


def _edge_of_grid(trials: Sequence[Trial], plateau: Sequence[Trial]) -> list[Finding]:
    """The grid ends where the answer may still get better."""
    least_tokens = min(trial.max_num_batched_tokens for trial in trials)
    most_seqs = max(trial.max_num_seqs for trial in trials)
    is_stream = [
        t for t in plateau if t.max_num_batched_tokens == least_tokens and _ends(t).startswith(("itl", "tpot"))
    ]
    is_full = [t for t in plateau if t.max_num_seqs == most_seqs and t.bound_share.get("seqs", 0.0) > 0.1]
    if is_stream and least_tokens > SMALLEST_BUDGET:
        smaller = ",".join(str(tokens) for tokens in (512, 1024, 2048) if tokens < least_tokens)
        what, ends = f"no budget of the grid is smaller than {least_tokens:,} tokens", _ends(is_stream[0])
        remedy = f"try --max-num-batched-tokens {smaller}, too"
    elif is_full:
        what, ends = f"no cell of the grid has more than {most_seqs} slots, and they are full", _ends(is_full[0])
        remedy = f"try --max-num-seqs {2 * most_seqs},{4 * most_seqs}, too"
    else:
        return []
    return [Finding(code="edge-of-grid", message=f"{what}; {ends} ends the rate there", remedy=remedy)]


def _ends(trial: Trial) -> str:
    return trial.highest_rate.bound_by if trial.highest_rate else ""


def _overload(chosen: Trial) -> list[Finding]:
    """More than half of the time somebody waits for a slot or for blocks."""
    waits = chosen.bound_share.get("seqs", 0.0) + chosen.bound_share.get("kv-blocks", 0.0)
    if waits < 0.5:
        return []
    return [
        Finding(
            code="overload",
            message=f"at {chosen.cell} requests wait for a slot or for KV blocks {waits:.0%} of the time: the traffic "
            "is near or above what the server can serve, and its latency is mostly queue",
            remedy="look at the capacity first: the same command without --objective latency",
        )
    ]


def _trade_offs(objective: Objective, trials: Sequence[Trial], chosen: Trial) -> list[Finding]:
    """Neighbours on the Pareto front of time to first token, inter-token latency and the latency that was asked for."""
    front = [t for t in trials if meets_targets(objective, t) and not any(_dominates(objective, o, t) for o in trials)]
    offers = [(_best_ratio(objective, trial, chosen), trial) for trial in front if trial.cell != chosen.cell]
    offers = sorted((offer for offer in offers if offer[0] <= 1 - BETTER_BY), key=lambda offer: offer[0])
    return [
        Finding(
            code="trade-off",
            message=f"{trial.cell} has {_compare(objective, trial, chosen)}",
            remedy="take it if that counts more",
        )
        for _, trial in offers[:MAX_NEIGHBOURS]
    ]


def _latencies(objective: Objective, trial: Trial) -> dict[str, float]:
    found = {objective.latency: objective.value(trial)}
    if trial.ttft_s:
        found.setdefault("ttft_p95", trial.ttft_s.p95)
    if trial.itl_s:
        found.setdefault("itl_p99", trial.itl_s.p99)
    return found


def _dominates(objective: Objective, one: Trial, other: Trial) -> bool:
    mine, theirs = _latencies(objective, one), _latencies(objective, other)
    return all(mine[name] <= theirs[name] for name in theirs) and mine != theirs


def _best_ratio(objective: Objective, trial: Trial, chosen: Trial) -> float:
    mine, theirs = _latencies(objective, trial), _latencies(objective, chosen)
    return min(mine[name] / theirs[name] for name in theirs)


def _compare(objective: Objective, trial: Trial, chosen: Trial) -> str:
    theirs = _latencies(objective, chosen)
    return ", ".join(
        f"{name} {format_seconds(value)} instead of {format_seconds(theirs[name])}"
        for name, value in _latencies(objective, trial).items()
    )
