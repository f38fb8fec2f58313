"""That a file is being read, and for how long: on a terminal, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_QUICK_BYTES = 8 << 20
"""A shorter file is read before anybody wonders."""


@contextmanager
def read_status(path: str | None) -> Iterator[None]:
    """Show a running clock while the block reads a file; nothing for short files, other sources, or off a terminal."""
    num_bytes = _size(path)
    if num_bytes < _QUICK_BYTES or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(f"reading {path} ({num_bytes / 1e6:,.0f} MB)", total=None)
        yield


def _size(path: str | None) -> int:
    try:
        return Path(path).stat().st_size if path else 0
    except OSError:
        return 0
