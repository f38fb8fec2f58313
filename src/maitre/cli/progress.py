"""Progress on stderr: on a terminal a bar or a matrix that fills in, elsewhere nothing or a line a trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

    from maitre.records import Cell, Decision, FailedTrial, Flags, Trial


@contextmanager
def trial_progress(num_cells: int) -> Iterator[Callable[[Trial], None]]:
    """A bar that moves with every finished trial."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("cells", total=num_cells)

        def advance(trial: Trial) -> None:
            progress.update(task, advance=1, description=f"{trial.max_num_seqs} × {trial.max_num_batched_tokens:,}")

        yield advance


@contextmanager
def measured_progress(
    cells: Sequence[Cell], finished: Sequence[Trial], *, is_search: bool = False
) -> Iterator[MeasuredProgress]:
    """The matrix filling in as cells are measured, with elapsed and remaining time; off a terminal a line a trial.

    Args:
        cells: all cells of the study.
        finished: trials that an earlier run has left.
        is_search: not every cell will be measured.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    matrix = _Matrix(cells, finished, is_search=is_search)
    with Live(matrix, console=console, transient=True, auto_refresh=console.is_terminal) as live:
        yield MeasuredProgress(matrix, live, console)


class MeasuredProgress:
    """Told of every trial, and of what a search makes of it."""

    def __init__(self, matrix: _Matrix, live: Live, console: Console) -> None:
        self._matrix, self._live, self._console = matrix, live, console

    def __call__(self, trial: Trial | FailedTrial) -> None:
        """A trial is done."""
        self._matrix.add(trial)
        self._show(_line(trial))

    def decide(self, decision: Decision) -> None:
        """A search has learned from it."""
        if decision.leader is not None and decision.probability is not None:
            self._matrix.leader = f"{decision.leader} leads, surely good with {decision.probability:.0%}"
            self._show(f"  {self._matrix.leader}")

    def _show(self, line: str) -> None:
        if self._console.is_terminal:
            self._live.refresh()
        else:
            self._console.print(line, highlight=False, soft_wrap=True)


class _Matrix:
    """Useful tokens/s of the cells so far."""

    def __init__(self, cells: Sequence[Cell], finished: Sequence[Trial], *, is_search: bool) -> None:
        self.leader = ""
        self._is_search = is_search
        self._cells = list(dict.fromkeys(cells))
        self._texts = {trial.cell: f"{trial.total_tokens_per_s:,.0f}" for trial in finished}
        self._num_before = len(self._texts)
        self._start_s = time.monotonic()

    def add(self, trial: Trial | FailedTrial) -> None:
        """Fill in a cell."""
        from maitre.records import Trial

        self._texts[trial.cell] = f"{trial.total_tokens_per_s:,.0f}" if isinstance(trial, Trial) else "failed"

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        return Group(self._table(), Text(self._times()))

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(box=None, padding=(0, 1), pad_edge=False)
        seqs = sorted({cell.max_num_seqs for cell in self._cells})
        table.add_column("", justify="right")
        for value in seqs:
            table.add_column(str(value), justify="right")
        rows: dict[tuple[Flags, int], dict[int, Cell]] = {}
        for cell in self._cells:
            rows.setdefault((cell.flags, -cell.max_num_batched_tokens), {})[cell.max_num_seqs] = cell
        for (flags, budget), row in sorted(rows.items()):
            texts = (self._texts.get(row[value], "·") if value in row else "" for value in seqs)
            table.add_row(" ".join([*(value for _, value in flags), f"{-budget:,}"]), *texts)
        return table

    def _times(self) -> str:
        from maitre.units import format_seconds

        elapsed_s = time.monotonic() - self._start_s
        if not self._texts:
            return f"{len(self._cells)} cells; the server starts, {format_seconds(elapsed_s)}"
        if self._is_search:
            return f"{len(self._texts)} of {len(self._cells)} cells, {format_seconds(elapsed_s)}; {self.leader}"
        num_done, num_left = len(self._texts) - self._num_before, len(self._cells) - len(self._texts)
        left = f", about {format_seconds(elapsed_s / num_done * num_left)} to go" if num_done and num_left else ""
        return f"{len(self._texts)} of {len(self._cells)} cells, {format_seconds(elapsed_s)}{left}"


def _line(trial: Trial | FailedTrial) -> str:
    from maitre.records import Trial

    if not isinstance(trial, Trial):
        return f"{trial.cell}: {trial.code}: {trial.message}"
    if trial.arrival_rps is not None and trial.attainment is not None:
        held = "met" if trial.attainment.met else "missed"
        share = f"{trial.attainment.share:.1%} of the requests within all of them"
        return f"{trial.cell}: targets {held} at {trial.arrival_rps:.3g} requests/s, {share}"
    if trial.cut_short:
        return f"{trial.cell}: cut short, it cannot win: about {trial.total_tokens_per_s:,.0f} useful tokens/s"
    speed = f"{trial.total_tokens_per_s:,.0f} useful tokens/s in {trial.duration_s:.1f} s"
    preemptions = "" if trial.num_preemptions is None else f", {trial.num_preemptions} preemptions"
    return f"{trial.cell}: {speed}{preemptions}"
