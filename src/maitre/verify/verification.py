"""What `maitre verify` answers: a verdict on a window, with all that it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from maitre.metric_series import MetricSeries
from maitre.records import Record
from maitre.verify.deployment import Deployment, first_known, from_series
from maitre.verify.diagnosis import judge
from maitre.verify.evidence import Evidence, LogFailure, gather
from maitre.verify.figures import Figures, figures_of
from maitre.verify.foresight.turn import SimulatedTurn
from maitre.verify.modes.modality import Modality
from maitre.verify.observed import Observed, observed
from maitre.verify.verdict import Confirmation, Finding, VerdictName


class Verification(Record):
    """The verdict on one window. Schema 1: first version (0.1)."""

    schema_version: Literal[1] = 1
    source: str
    start_s: float | None
    """First sample since the epoch; None where samples are not dated."""
    end_s: float | None
    verdict: VerdictName
    summary: str
    confirmations: tuple[Confirmation, ...]
    findings: tuple[Finding, ...]
    figures: Figures
    observed: Observed
    """What the last look showed."""
    deployment: Deployment
    turn: SimulatedTurn | None = None
    """What the simulator expects of the proposed turn; None without a turn, or without a model of the server."""
    notes: tuple[str, ...] = ()
    """What was lost or left out while reading."""


def verify(
    series: Sequence[MetricSeries],
    deployment: Deployment,
    source: str,
    *,
    failures: Sequence[LogFailure] = (),
    is_contradictory: bool = False,
    step_modes: Modality | None = None,
    notes: Sequence[str] = (),
    seed: int = 0,
) -> tuple[Verification, Evidence]:
    """Judge a window.

    Args:
        series: those of the window, under vLLM's own names.
        deployment: what is known of the setting; what it leaves open is taken from the series.
        source: where they come from, for people.
        failures: of the server while it served.
        is_contradictory: whether several processes answer behind one address.
        step_modes: whether steps with prompts stall the others, from logged steps.
        notes: what was lost or left out while reading.
        seed: of the test for more than one mode.
    """
    known = first_known([deployment, from_series(series)])
    evidence = gather(
        series, known, failures=failures, is_contradictory=is_contradictory, step_modes=step_modes, seed=seed
    )
    judgement = judge(evidence)
    times = np.concatenate([one.time_s for one in series] or [np.array([])])
    times = times[np.isfinite(times)]
    return Verification(
        source=source,
        start_s=float(times.min()) if len(times) else None,
        end_s=float(times.max()) if len(times) else None,
        verdict=judgement.verdict,
        summary=judgement.summary,
        confirmations=judgement.confirmations,
        findings=judgement.findings,
        figures=figures_of(evidence),
        observed=observed(series),
        deployment=known,
        notes=tuple(notes),
    ), evidence
