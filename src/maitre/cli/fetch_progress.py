"""How far a read from a server has come, on stderr: a bar on a terminal, elsewhere a line before each wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from maitre.workload.langfuse import FetchProgress


@contextmanager
def fetch_progress() -> Iterator[Callable[[FetchProgress], None]]:
    """Shows nothing until it is told something, so that files are read in silence."""
    bar = _Bar()
    try:
        yield bar.show
    finally:
        bar.stop()


class _Bar:
    def __init__(self) -> None:
        self._started: tuple[Progress, TaskID] | None = None

    def show(self, progress: FetchProgress) -> None:
        bar, task = self._started or self._start()
        words = f"{progress.num_read:,} generations"
        bar.update(task, completed=progress.share, description=f"{words}; {progress.note}" if progress.note else words)
        if progress.note and not bar.console.is_terminal:
            bar.console.print(f"{words}; {progress.note}", markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        if self._started:
            self._started[0].stop()

    def _start(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
        bar = Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
        )  # fmt: skip
        self._started = (bar, bar.add_task("asking the server", total=1.0))
        bar.start()
        return self._started
