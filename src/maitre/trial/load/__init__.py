"""The load of a measured trial: a workload's requests, sent on time to a real server and followed to their ends.

workload → prompts (fresh token ids) → plan (what, when) → client (one process) or processes (several)
→ request, events (one stream) → outcome, with the client's own health.
"""

from maitre.trial.load.client import Progress, drive
from maitre.trial.load.health import ClientHealth
from maitre.trial.load.outcome import ErrorKind, LoadProgress, LoadResult, RequestOutcome
from maitre.trial.load.plan import LoadPlan, PlannedRequest, plan_load
from maitre.trial.load.processes import count_processes, drive_in_processes
from maitre.trial.load.prompts import make_prompts

__all__ = [
    "ClientHealth",
    "ErrorKind",
    "LoadPlan",
    "LoadProgress",
    "LoadResult",
    "PlannedRequest",
    "Progress",
    "RequestOutcome",
    "count_processes",
    "drive",
    "drive_in_processes",
    "make_prompts",
    "plan_load",
]
