"""Do requests wait in steady state, and for what? The queue alone names no dial."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maitre.verify.engine_gauges import EngineGauges, share
from maitre.verify.evidence import Evidence
from maitre.verify.verdict import Finding
from maitre.verify.waiting_causes import CAUSES, limit_of, unexplained
from maitre.verify.words import many, percent

MOSTLY = 0.5
"""Requests wait throughout a stretch when they do in this share of its samples."""
PERSISTENT = 0.2
"""Requests wait in steady state when they do so in this share of all samples, or throughout stretches that make up this
share of the window."""
NUM_STRETCHES = 24
STRETCH = 4
"""Samples in a stretch at least."""


def steady_queue(engine: EngineGauges) -> NDArray[np.bool_]:
    """The samples in which requests wait within stretches of waiting; all false where queues come and go."""
    queued = np.nan_to_num(engine.waiting) >= 1
    if len(queued) >= NUM_STRETCHES and share(queued) >= PERSISTENT:
        return queued
    number = min(NUM_STRETCHES, max(1, len(queued) // STRETCH))
    stretches = np.array_split(np.arange(len(queued)), number)
    steady = [part for part in stretches if share(queued[part]) >= MOSTLY]
    inside = np.zeros(len(queued), dtype=bool)
    if steady and len(steady) >= PERSISTENT * number:
        inside[np.concatenate(steady)] = True
    return inside & queued


def busiest_queue(evidence: Evidence) -> tuple[EngineGauges, NDArray[np.bool_]] | None:
    """The engine with the longest steady queue, and the samples in question."""
    queues = [(engine, inside) for engine in evidence.engines if (inside := steady_queue(engine)).any()]
    return max(queues, key=lambda pair: float(pair[0].waiting[pair[1]].sum()), default=None)


def explain_waiting(evidence: Evidence) -> Finding | None:
    """Why requests wait in steady state; None where they do not."""
    queue = busiest_queue(evidence)
    if queue is None:
        return None
    engine, inside = queue
    at_queue = engine.cut(inside)
    limit = limit_of(evidence, at_queue)
    found = next((finding for cause in CAUSES if (finding := cause(evidence, at_queue, limit))), None)
    finding = found or unexplained(evidence, at_queue, limit)
    return finding.model_copy(update={"value": float(at_queue.waiting.mean())} | _where(evidence, engine, finding))


def passing_bursts(evidence: Evidence) -> Finding | None:
    """A remark on queues that build up and go away."""
    shares = [share(np.nan_to_num(engine.waiting) >= 1) for engine in evidence.engines]
    if not shares or max(shares) < 0.05 or busiest_queue(evidence) is not None:
        return None
    return Finding(
        code="bursts-wait",
        message=f"requests wait in {percent(max(shares))} of the samples, never for long",
        value=max(shares),
        remedy="nothing to turn; if time to first token is too long, look at the bursts",
    )


def uneven_engines(evidence: Evidence) -> Finding | None:
    """A remark when one engine queues while another has room."""
    queue = busiest_queue(evidence)
    if queue is None or len(evidence.engines) < 2:
        return None
    idle = [one for one in evidence.engines if one is not queue[0] and not steady_queue(one).any()]
    if not idle:
        return None
    return Finding(
        code="uneven-engines",
        message=f"{queue[0].name} queues while {many(len(idle), 'other engine')} {_do(len(idle))} not",
        value=float(len(idle)),
        remedy="look at how requests are spread over engines and replicas (session affinity, least-loaded routing)",
    )


def _where(evidence: Evidence, engine: EngineGauges, finding: Finding) -> dict[str, object]:
    """Name the engine where there are several."""
    if len(evidence.engines) < 2 or not engine.name:
        return {}
    return {"message": f"{engine.name}: {finding.message}"}


def _do(number: int) -> str:
    return "does" if number == 1 else "do"
