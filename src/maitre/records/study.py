"""One surface and the answer to it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from maitre.records.objective import Objective
from maitre.records.record import Record
from maitre.records.server import AtCell, Cell, KvBudget, ServerConfig
from maitre.records.trial import FailedTrial, Trial


class Limits(Record):
    """Upper bounds of throughput in total tokens/s that no setting can pass (`maitre.limits`)."""

    compute_tokens_per_s: float
    overlap_tokens_per_s: float
    sequential_tokens_per_s: float
    best_simulated_tokens_per_s: float | None = None


NOT_SURE_YET = "not-sure-yet"
"""The finding of a search that was ended by a limit."""


class Finding(Record):
    """A doubt about the result, and what to do about it."""

    code: str
    message: str
    remedy: str = ""


class Decision(AtCell):
    """One run on a real server: why it was made, and what was known after it."""

    reason: str
    """What the run was expected to settle."""
    expected_s: float | None
    """How long the whole workload was expected to take; None when nothing was expected yet."""
    rate_rps: float | None = None
    """Requests/s of a run whose rate was chosen; None for all at once, or at their own times."""
    measured_s: float
    """How long the run took."""
    cut_short: bool = False
    failed: str = ""
    """The code of the failure, if it failed."""
    leader: Cell | None = None
    """After the run: the cell that is most surely within epsilon of the best …"""
    probability: float | None = None
    """… and how surely."""


class DriftLoss(AtCell):
    """What a cell loses against the best cell of the grid when something changes (`maitre.search.drift`)."""

    by_change: dict[str, float]
    """Share of the throughput, 0 to 1, for each change."""
    worst: float


class Confirmation(Record):
    """The recommended setting and the present one, run in turn after the search."""

    engine: str
    """`restart`: each run on a server that was started for it; `live`: on one server."""
    recommended: Cell
    baseline: Cell
    recommended_s: tuple[float, ...]
    """Seconds of each run over the workload."""
    baseline_s: tuple[float, ...]
    gain: float
    """Throughput ratio minus 1."""
    gain_low: float
    gain_high: float


class Recommendation(Record):
    """The answer: which cell, what it gains over the present one, and why."""

    recommended: Cell
    baseline: Cell
    worth_changing: bool
    gain: float | None
    """Ratio minus 1, recommended over baseline, of what the objective counts: tokens/s, requests/s, or one over the
    latency. None, as the next two, if the targets are out of reach of the baseline."""
    gain_low: float | None
    gain_high: float | None
    num_measured: int
    """Runs on a real server; 0 when the simulator answered."""
    measured_s: float
    """Seconds that those runs took."""
    epsilon: float
    delta: float
    probability_within_epsilon: float | None
    """None when nothing says how far the surface may be off."""
    plateau: tuple[Cell, ...]
    """Cells within epsilon of the best."""
    reason: str
    study: str | None = None
    """Directory of the stored study."""


class Study(Record):
    """Everything about one surface: what was asked, every trial, the answer."""

    schema_version: Literal["maitre-study-1"] = "maitre-study-1"
    maitre_version: str
    engine: str
    server: ServerConfig
    gpu: str
    workload_name: str
    workload_source: str
    num_requests: int
    total_tokens: int
    open_loop: bool = False
    """Requests came at the workload's own times; else all were there at once, and TTFT is mostly time in the queue."""
    objective: Objective = Objective()
    calibration: str
    """Which step-time model answered, and how far to trust it."""
    cells: tuple[Trial, ...]
    """One a cell. Where cells were measured, those that were not are the simulator's, corrected by the others."""
    decisions: tuple[Decision, ...] = ()
    """Runs on a real server, in order."""
    drift: tuple[DriftLoss, ...] = ()
    """Of the plateau, where it was asked for."""
    confirmation: Confirmation | None = None
    """None if nothing was to be confirmed, or it was not asked for."""
    infeasible: dict[str, str] = Field(default_factory=dict)
    """Cells (`str(Cell)`) that vLLM cannot serve with, and why."""
    failed: tuple[FailedTrial, ...] = ()
    """Cells that could not be measured."""
    budgets: dict[str, KvBudget] = Field(default_factory=dict)
    """KV budget by cell (`str(Cell)`)."""
    limits: Limits | None = None
    findings: tuple[Finding, ...] = ()
    recommended: Cell
    recommendation: Recommendation
