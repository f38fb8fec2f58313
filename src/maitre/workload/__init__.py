"""The traffic: a request table, a stored file, a spec or a reference becomes a `Workload`, and its profile.

sources (what kind of file) → tables, json_rows, or a reader of its own (otlp_json, otlp_protobuf, sharegpt, vllm_log):
columns as stored → columns (which is which) → lengths, times, prefixes (values) → row_rules, cleaning (rows to
requests) → `Workload` → store, profile, trace_export.
"""

from maitre.workload.columns import Columns
from maitre.workload.langfuse import Selection
from maitre.workload.loading import limit_requests, load_workload, prometheus_address
from maitre.workload.no_requests import NoRequestsError, ServerLoad
from maitre.workload.profile import DropReason, LengthStatistics, WorkloadProfile, describe
from maitre.workload.reference import REFERENCES, ReferenceProfile, reference_workload
from maitre.workload.store import save_workload, write_text
from maitre.workload.trace_export import TRACE_FORMATS, export_trace

__all__ = [
    "REFERENCES",
    "TRACE_FORMATS",
    "Columns",
    "DropReason",
    "LengthStatistics",
    "NoRequestsError",
    "ReferenceProfile",
    "Selection",
    "ServerLoad",
    "WorkloadProfile",
    "describe",
    "export_trace",
    "limit_requests",
    "load_workload",
    "prometheus_address",
    "reference_workload",
    "save_workload",
    "write_text",
]
