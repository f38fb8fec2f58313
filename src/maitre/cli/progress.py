"""Progress on stderr: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitre.records import Trial


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
