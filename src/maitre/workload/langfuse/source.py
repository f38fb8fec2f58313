"""What follows `langfuse:`: the address of a server, a file, or the folder of a blob-storage export."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from maitre.errors import InputError
from maitre.files import read_content

if TYPE_CHECKING:
    from maitre.records import Workload
    from maitre.workload.langfuse.progress import OnProgress
    from maitre.workload.langfuse.selection import Selection

PREFIX = "langfuse:"


def read_langfuse(text: str, selection: Selection, on_progress: OnProgress | None) -> Workload:
    """Read the observations that a source names.

    Args:
        text: `langfuse:https://HOST`, `langfuse:` (the host of LANGFUSE_BASE_URL), or `langfuse:PATH`.
        selection: time window and filters.
        on_progress: told of pages and waits; None to be quiet.

    Raises:
        UsageError, InputError, UnsupportedError, SystemFailure: as `read_server`, `read_export` and `read_folder`.
    """
    place = text.removeprefix(PREFIX)
    if not place or "://" in place:
        from maitre.workload.langfuse.server import Surroundings, read_server  # noqa: PLC0415 - aiohttp is slow to load

        return read_server(place, selection, Surroundings(os.environ), on_progress or (lambda _: None))
    # polars loads in a quarter of a second, and only files need it
    from maitre.workload.langfuse.exports import looks_like_export, read_export, read_folder  # noqa: PLC0415

    path = Path(place)
    if path.is_dir():
        return read_folder(path, selection)
    content = read_content(place, place)
    if not looks_like_export(content):
        raise InputError(f"{place}: no observations of Langfuse", "leave langfuse: out for another table")
    return read_export(content, place, selection, path.name.partition(".")[0] or place)
