"""Langfuse as a source: a server's observations, or the files that it exports.

selection (what is asked) → server → pages over connection, in windows, kept in a journal; or exports (files)
→ observation, fields, usage (one row) → requests → `Workload`.
"""

from maitre.workload.langfuse.progress import FetchProgress, OnProgress
from maitre.workload.langfuse.selection import Selection
from maitre.workload.langfuse.source import PREFIX, read_langfuse

__all__ = ["PREFIX", "FetchProgress", "OnProgress", "Selection", "read_langfuse"]
