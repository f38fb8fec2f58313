"""Signs in the metrics that no setting explains, each with where it was reported."""

from __future__ import annotations

import numpy as np

from maitre.verify.engine_gauges import EngineGauges, share
from maitre.verify.evidence import Evidence
from maitre.verify.verdict import Finding
from maitre.verify.words import percent

LEAST_S = 360.0
"""How long a sign has to last. Prometheus repeats the last scrape of a server for five minutes
(`--query.lookback-delta`), and what is repeated stands still."""
LEAKED = 0.02
"""KV usage of an idle engine that counts: gauges are rounded, and a last step may still hold a block."""


def find_defect(evidence: Evidence) -> Finding | None:
    """The first known defect that the metrics show."""
    for engine in evidence.engines:
        found = _leaked_blocks(engine) or _no_tokens(evidence, engine)
        if found is not None:
            return found
    return None


def _leaked_blocks(engine: EngineGauges) -> Finding | None:
    """Nothing runs or waits, and the pool is not empty: cached blocks count as free, so these belong to nobody."""
    idle = (np.nan_to_num(engine.in_flight, nan=1.0) == 0) & np.isfinite(engine.kv_usage)
    if idle.sum() < 3 or not _lasts(engine, idle) or share(idle[-3:]) < 1:
        return None
    usage = float(engine.kv_usage[idle].min())
    if usage < LEAKED:
        return None
    return Finding(
        code="leaked-blocks",
        verdict="bug-in-vllm",
        message=f"nothing runs and nothing waits, but {percent(usage)} of the KV pool is held: blocks of requests that "
        "were aborted or refused were never freed",
        value=usage,
        remedy="restart the server when it is quiet, and update vLLM; reported for aborted transfers of remote KV "
        "blocks (vllm-project/vllm#46283) and after refused long requests (vllm-project/vllm#27073)",
        remedy_code="report-a-defect",
        evidence=(f"idle in {int(idle.sum())} samples, KV usage never below {percent(usage)}",),
    )


def _no_tokens(evidence: Evidence, engine: EngineGauges) -> Finding | None:
    """Requests run the whole time, and not one token comes."""
    busy = np.nan_to_num(engine.running) >= 1
    whole = evidence.whole
    nothing = whole.output_tokens_per_s == 0 and not whole.num_requests and not whole.prompt_tokens_per_s
    if len(evidence.engines) > 1 or not nothing or not busy.all() or busy.sum() < 3 or not _lasts(engine, busy):
        return None
    return Finding(
        code="no-tokens",
        verdict="bug-in-vllm",
        message="requests run all the time and no token comes: the engine hangs",
        value=float(np.nanmean(engine.running)),
        remedy="take a stack trace of the engine's process (py-spy dump), restart the server, and report it; engines "
        "that hang under load were reported in several versions (vllm-project/vllm#2731, #32262)",
        remedy_code="report-a-defect",
        evidence=(f"running {float(np.nanmean(engine.running)):.1f}, generated tokens 0",),
    )


def _lasts(engine: EngineGauges, inside: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> bool:
    times = engine.time_s[inside]
    return bool(np.isfinite(times).all() and len(times) and times[-1] - times[0] >= LEAST_S)
