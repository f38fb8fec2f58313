"""Doubts about a surface, each with a remedy."""

from __future__ import annotations

from collections.abc import Sequence

from maitre.records import NOT_SURE_YET, FailedTrial, Finding, Recommendation, Trial
from maitre.units import format_seconds

REQUESTS_PER_SLOT = 4
"""Requests for each slot below which ramp and drain weigh on the throughput of a whole run (modelling notes, section 4:
with fewer than one there is no queue at all)."""


def find_doubts(
    trials: Sequence[Trial],
    recommendation: Recommendation,
    failed: Sequence[FailedTrial] = (),
    *,
    num_requests: int,
    open_loop: bool,
) -> list[Finding]:
    """What may be wrong with the answer.

    Args:
        trials: one a cell.
        recommendation: the answer.
        failed: cells that could not be measured.
        num_requests: in each trial.
        open_loop: requests came at their own times.
    """
    doubts = [] if open_loop else _few_requests(trials, num_requests)
    doubts += _long_stall(trials, recommendation)
    doubts += [
        Finding(
            code="spoiled",
            message=f"{trial.cell}: {trial.spoiled_by}",
            remedy="measure it again without that",
        )
        for trial in trials
        if trial.spoiled_by
    ]
    return doubts + [
        Finding(code=f"failed-{f.code}", message=f"{f.cell} was not measured: {f.message}", remedy=f.remedy)
        for f in failed
    ]


def _few_requests(trials: Sequence[Trial], num_requests: int) -> list[Finding]:
    most_slots = max(trial.max_num_seqs for trial in trials)
    if num_requests >= REQUESTS_PER_SLOT * most_slots:
        return []
    return [
        Finding(
            code="few-requests",
            message=f"{num_requests} requests fill {most_slots} slots fewer than {REQUESTS_PER_SLOT} times, so "
            "ramp and drain weigh on the cells with many slots",
            remedy=f"take at least {REQUESTS_PER_SLOT * most_slots} requests",
        )
    ]


def _long_stall(trials: Sequence[Trial], recommendation: Recommendation) -> list[Finding]:
    """The p99 does not see a stall that hits fewer than 1 % of the tokens."""
    plateau = [trial for trial in trials if trial.cell in recommendation.plateau and trial.itl_s]
    chosen = next(trial for trial in trials if trial.cell == recommendation.recommended)
    calmest = min(plateau, key=lambda trial: trial.itl_s.max if trial.itl_s else 0.0, default=chosen)
    if chosen not in plateau or not chosen.itl_s or not calmest.itl_s or chosen.itl_s.max <= 2 * calmest.itl_s.max:
        return []
    return [
        Finding(
            code="long-stall",
            message=f"at {chosen.cell} a stream can stand still for {format_seconds(chosen.itl_s.max)}, rarely "
            f"enough for the p99 not to see it; at {calmest.cell}, as fast within {recommendation.epsilon:.0%}, "
            f"for {format_seconds(calmest.itl_s.max)}",
            remedy=f"take {calmest.cell} if users watch the stream",
        )
    ]


def unsure(answer: Recommendation, num_runs: int) -> Finding:
    """The search was ended before its answer was sure."""
    sure = answer.probability_within_epsilon or 0.0
    return Finding(
        code=NOT_SURE_YET,
        message=f"after {num_runs} runs {answer.recommended} is within {answer.epsilon:.0%} of the best with "
        f"probability {sure:.0%}, less than the {1 - answer.delta:.0%} that were asked for",
        remedy="raise --max-trials or --max-time and run the command again; it goes on from here",
    )
