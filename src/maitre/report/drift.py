"""What the equally good cells lose when something changes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from maitre.records import DriftLoss


def drift_table(losses: Sequence[DriftLoss]) -> Table:
    """A line a cell, the one that loses least at worst first."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("loss against the best cell", no_wrap=True)
    for name in losses[0].by_change:
        table.add_column(name, justify="right")
    for loss in sorted(losses, key=lambda loss: loss.worst):
        table.add_row(loss.cell.short, *(f"{100 * share:.1f} %" for share in loss.by_change.values()))
    return table
