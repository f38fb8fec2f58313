"""Why each run on a real server was made, and what it settled."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from maitre.records import Confirmation, Decision


def decisions_table(decisions: Sequence[Decision]) -> Table:
    """A line a run, in order: the leader is the cell that is then most surely within epsilon of the best."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("run", "took", "expected", "leader then", "why"):
        table.add_column(name, no_wrap=name != "why")
    for number, decision in enumerate(decisions, 1):
        name = f"{number} {decision.cell.short}"
        table.add_row(name, _measured(decision), _expected(decision), _leader(decision), decision.reason)
    return table


def confirmation_words(confirmation: Confirmation) -> str:
    """What the last runs say."""
    where = "on fresh starts" if confirmation.engine == "restart" else "on one server"
    low, high = 100 * confirmation.gain_low, 100 * confirmation.gain_high
    num_runs, pair = len(confirmation.recommended_s), f"{confirmation.recommended} against {confirmation.baseline}"
    return (
        f"confirmed {where}, {num_runs} runs of each in turn: {pair} "
        f"{100 * confirmation.gain:+.1f} % ({low:+.1f} to {high:+.1f} %)"
    )


def _measured(decision: Decision) -> str:
    if decision.failed:
        return f"failed: {decision.failed}"
    rate = f" at {decision.rate_rps:.3g}/s" if decision.rate_rps else ""
    return f"{decision.measured_s:.1f} s{rate}{', cut short' if decision.cut_short else ''}"


def _expected(decision: Decision) -> str:
    return "" if decision.expected_s is None else f"{decision.expected_s:.1f} s"


def _leader(decision: Decision) -> str:
    if decision.leader is None or decision.probability is None:
        return ""
    return f"{decision.leader.short} {decision.probability:.0%}"
