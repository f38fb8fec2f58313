"""The traffic: a request table, a stored file, a spec or a reference becomes a `Workload`, and its profile.

source → tables, json_rows (columns as stored) → columns (which is which) → lengths, times, prefixes (values)
→ cleaning (rows to requests) → `Workload` → store, profile.
"""

from maitre.workload.columns import Columns
from maitre.workload.loading import limit_requests, load_workload
from maitre.workload.profile import DropReason, LengthStatistics, WorkloadProfile, describe
from maitre.workload.reference import REFERENCES, ReferenceProfile, reference_workload
from maitre.workload.store import save_workload

__all__ = [
    "REFERENCES",
    "Columns",
    "DropReason",
    "LengthStatistics",
    "ReferenceProfile",
    "WorkloadProfile",
    "describe",
    "limit_requests",
    "load_workload",
    "reference_workload",
    "save_workload",
]
