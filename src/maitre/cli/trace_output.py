"""A workload written as a trace for a load generator, and how the tool replays it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitre.records import Workload


def write_trace(traffic: Workload, tool: str, output: str) -> int:
    """Write the trace to a file or stdout, and say on stderr how it is replayed; returns the exit code."""
    from sys import stderr

    from maitre.workload import export_trace, write_text

    lines, how = export_trace(traffic, tool, "FILE" if output == "-" else output)
    write_text(lines, output)
    print(how, file=stderr)
    return 0
