"""What is stored and read: frozen records, unknown keys rejected, a schema version in every stored file.

Schema history
    maitre-workload-1   first version
    maitre-study-1      first version
                        later: the trials' cut_short, tpot_s, steady, attainment, client_ttft_s and client_itl_s; a file
                        without them is read as before
                        later: decisions, drift, confirmation; flags of a cell
"""

from maitre.records.objective import Objective
from maitre.records.record import Record
from maitre.records.server import AtCell, Cell, Flags, KvBudget, MemoryPart, ServerConfig
from maitre.records.study import NOT_SURE_YET, Confirmation, Decision, DriftLoss, Finding, Limits, Recommendation, Study
from maitre.records.trial import (
    Attainment,
    BoundBy,
    FailedTrial,
    HighestRate,
    Percentiles,
    SteadyWindow,
    TargetAttainment,
    Trial,
)
from maitre.records.workload import Workload

__all__ = [
    "NOT_SURE_YET",
    "AtCell",
    "Attainment",
    "BoundBy",
    "Cell",
    "Confirmation",
    "Decision",
    "DriftLoss",
    "FailedTrial",
    "Finding",
    "Flags",
    "HighestRate",
    "KvBudget",
    "Limits",
    "MemoryPart",
    "Objective",
    "Percentiles",
    "Recommendation",
    "Record",
    "ServerConfig",
    "SteadyWindow",
    "Study",
    "TargetAttainment",
    "Trial",
    "Workload",
]
