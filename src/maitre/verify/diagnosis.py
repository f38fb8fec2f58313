"""From a window's evidence to one verdict.

Signs are looked for in the order in which they rule each other out: what makes the metrics unusable, then a server that
fails, then a pool that is too small (whatever waits then waits for it), then the queue, then the latency's shape, and
last, when nothing is wrong, whether there is load enough and who limits it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from maitre.verify.evidence import Evidence
from maitre.verify.known_defects import find_defect
from maitre.verify.kv_pressure import PREEMPTIONS_PER_MIN, explain_pressure
from maitre.verify.latency_shape import confirm_latency, two_modes
from maitre.verify.load import closed_loop, idle, little_load, mean_in_flight, under_used
from maitre.verify.remarks import remarks
from maitre.verify.verdict import Confirmation, Finding, Judgement
from maitre.verify.waiting import busiest_queue, explain_waiting
from maitre.verify.waiting_causes import FULL
from maitre.verify.words import per_minute, percent

LEAST_SAMPLES = 3
"""Looks at the gauges from which a steady state can be told from a moment."""

Rule = Callable[[Evidence], Finding | None]


def judge(evidence: Evidence) -> Judgement:
    """The verdict, with what speaks for it and what does not."""
    decisive = [finding for rule in RULES if (finding := rule(evidence)) is not None]
    first = decisive[0] if decisive else _healthy(evidence)
    others = [finding for finding in decisive[1:] if finding.code in _STAND_BESIDE]
    verdict = first.verdict or "cannot-tell"
    return Judgement(
        verdict=verdict,
        summary=first.message,
        confirmations=(_confirm_waiting(evidence), _confirm_preemptions(evidence), confirm_latency(evidence)),
        findings=(first, *others, *remarks(evidence)),
    )


# what makes the metrics unusable


def _contradictory(evidence: Evidence) -> Finding | None:
    servers = evidence.deployment.api_server_count or 1
    if not evidence.is_contradictory and not (servers > 1 and _is_silent(evidence)):
        return None
    return Finding(
        code="one-of-several-processes",
        verdict="cannot-tell",
        message="several API server processes answer behind one address, and one scrape shows one of them: counters "
        "run backwards, or are missing",
        remedy="set PROMETHEUS_MULTIPROC_DIR (vLLM does so itself from 0.10 with --api-server-count), scrape a merged "
        "/metrics whose counters never fall, and look again; change no flag on these figures",
        remedy_code="measure-more",
    )


def _no_gauges(evidence: Evidence) -> Finding | None:
    if not _is_silent(evidence):
        return None
    names = sorted({one.name for one in evidence.series})
    seen = f"; there are {', '.join(names[:3])}{' …' if len(names) > 3 else ''}" if names else ""
    return Finding(
        code="missing-series",
        verdict="cannot-tell",
        message=f"neither running nor waiting requests nor the KV usage are exposed{seen}",
        remedy="scrape the server's own /metrics without --disable-log-stats; with several API server processes "
        "(--api-server-count) one scrape may show one process only",
        remedy_code="measure-more",
    )


def _failed(evidence: Evidence) -> Finding | None:
    if not evidence.failures:
        return None
    failure = evidence.failures[-1]
    is_memory = "memory" in failure.code or "oom" in failure.code
    return Finding(
        code=failure.code,
        verdict="other",
        message=f"the server failed while it served: {failure.message}"
        + (" (out of memory: the largest --gpu-memory-utilization that starts leaves no headroom for the load)"
           if is_memory else ""),
        remedy="lower --gpu-memory-utilization by 0.02 to 0.05: graphs, the sampler and fragmentation are outside the "
        "profiled budget" if is_memory else "look at the traceback in the log",
        remedy_code="lower-gpu-memory-utilization" if is_memory else None,
    )  # fmt: skip


def _few_samples(evidence: Evidence) -> Finding | None:
    """Nothing is wrong at one moment: that is not a steady state."""
    if evidence.num_samples >= LEAST_SAMPLES:
        return None
    return Finding(
        code="too-few-samples",
        verdict="cannot-tell",
        message=f"{'one look' if evidence.num_samples == 1 else f'{evidence.num_samples} looks'} at the gauges shows a "
        "moment, not a steady state, and no rates",
        remedy="scrape for a while (--for 5min), or ask Prometheus for an hour",
        remedy_code="measure-more",
    )


def _healthy(evidence: Evidence) -> Finding:
    in_flight = mean_in_flight(evidence)
    usage = evidence.whole.kv_usage
    figures = [f"{in_flight:.1f} requests in flight" if in_flight is not None else "",
               f"the KV pool {percent(usage)} full" if usage is not None else ""]  # fmt: skip
    return Finding(
        code="healthy",
        verdict="healthy",
        message=f"nobody waits and nothing preempts, at {' and '.join(f for f in figures if f) or 'this load'}",
        remedy="keep the setting",
        remedy_code="keep-the-setting",
    )


RULES: tuple[Rule, ...] = (
    _contradictory, _failed, _no_gauges, find_defect, idle, explain_pressure, explain_waiting, _few_samples, two_modes,
    little_load, closed_loop, under_used,
)  # fmt: skip
_STAND_BESIDE = {"preempting", "pool-full", "slot-bound", "budget-bound", "two-modes"}
"""Findings that are worth showing when another one decided."""


# the first two confirmations


def _confirm_waiting(evidence: Evidence) -> Confirmation:
    known = [one for one in evidence.engines if np.isfinite(one.waiting).any()]
    mean = evidence.whole.waiting
    if not known:
        message = "the number of waiting requests is not exposed here"
        return Confirmation(name="waiting", answer="cannot-tell", value=mean, message=message)
    if busiest_queue(evidence) is not None:
        message = f"requests wait in steady state, {mean:.1f} on average" if mean is not None else "requests wait"
        return Confirmation(name="waiting", answer="no", value=mean, message=message)
    if evidence.num_samples < LEAST_SAMPLES:
        return Confirmation(name="waiting", answer="cannot-tell", value=mean, message="nobody waits at this moment")
    return Confirmation(name="waiting", answer="yes", value=mean, message=f"{mean or 0:.2g} on average")


def _confirm_preemptions(evidence: Evidence) -> Confirmation:
    rate = evidence.preemptions_per_min
    if rate is not None:
        answer = "no" if rate >= PREEMPTIONS_PER_MIN else "yes"
        return Confirmation(name="preemptions", answer=answer, value=rate, message=per_minute(rate))
    tops = [float(np.nanmax(one.kv_usage)) for one in evidence.engines if np.isfinite(one.kv_usage).any()]
    if evidence.num_samples >= LEAST_SAMPLES and tops and max(tops) < FULL:
        message = f"not counted here, but the KV pool never was more than {percent(max(tops))} full"
        return Confirmation(name="preemptions", answer="yes", value=None, message=message)
    message = "not counted here, or seen once only"
    return Confirmation(name="preemptions", answer="cannot-tell", value=None, message=message)


def _is_silent(evidence: Evidence) -> bool:
    gauges = ((one.running, one.waiting, one.kv_usage) for one in evidence.engines)
    return not any(np.isfinite(values).any() for three in gauges for values in three)
