"""Is the KV pool too small for what runs? Preempting, full, filling up, or sure to be full at max_num_seqs."""

from __future__ import annotations

import numpy as np

from maitre.verify.engine_gauges import AT_LIMIT, EngineGauges, share
from maitre.verify.evidence import Evidence
from maitre.verify.verdict import Finding
from maitre.verify.waiting_causes import FULL, MOSTLY
from maitre.verify.words import percent, span

PREEMPTIONS_PER_MIN = 1.0
"""The article's bound for a healthy server."""
CREEP_FROM = 0.85
"""KV usage from which a steady rise is followed to the moment when the pool is full."""
CREEP_S = 1800.0
"""A pool that would be full later than this is no concern yet: requests end before."""


def explain_pressure(evidence: Evidence) -> Finding | None:
    """The first sign that the pool is too small."""
    rules = (preempting, _full, _creeping, _over_committed)
    return next((finding for rule in rules if (finding := rule(evidence))), None)


def preempting(evidence: Evidence) -> Finding | None:
    """At least one preemption a minute."""
    rate = evidence.preemptions_per_min
    if rate is None or rate < PREEMPTIONS_PER_MIN:
        return None
    limit = evidence.deployment.seqs_limit
    at_limit = limit is not None and any(
        share(np.nan_to_num(engine.running) >= AT_LIMIT * limit) >= MOSTLY for engine in evidence.engines
    )
    each = evidence.whole.preemptions_per_request
    return Finding(
        code="preempting",
        verdict="lower-max-num-seqs" if at_limit else "kv-bound",
        message=f"{rate:,.1f} preemptions a minute: running requests outgrow the KV pool, and what they had computed "
        "is computed again",
        value=rate,
        remedy="give the pool more (--kv-cache-dtype fp8, a higher --gpu-memory-utilization, more GPUs), or lower "
        "--max-num-seqs to what it holds, which may cost some throughput",
        remedy_code="lower-max-num-seqs",
        evidence=(*([f"{each:.2f} preemptions a request"] if each else []), *_usage(evidence), *_fits(evidence)),
    )


def _full(evidence: Evidence) -> Finding | None:
    """The pool stands full, whether or not the counter of preemptions is there."""
    full = [one for one in evidence.engines if share(np.nan_to_num(one.kv_usage) >= FULL) >= MOSTLY]
    if not full:
        return None
    running = [float(np.nanmean(one.running)) for one in full if np.isfinite(one.running).any()]
    few = f" with {max(running):.0f} requests running" if running else ""
    return Finding(
        code="pool-full",
        verdict="kv-bound",
        message=f"the KV pool is full{few}: the next block that is needed preempts a request",
        value=max(float(np.nanmean(one.kv_usage)) for one in full),
        remedy="more KV memory (--kv-cache-dtype fp8, a higher --gpu-memory-utilization, more GPUs), shorter requests "
        "(--max-model-len), or a lower --max-num-seqs",
        remedy_code="fp8-kv-cache",
        evidence=(*_usage(evidence), *_fits(evidence)),
    )


def _creeping(evidence: Evidence) -> Finding | None:
    """Usage rises steadily with the same requests running: they generate until the pool is full."""
    for engine in evidence.engines:
        full_s = _seconds_until_full(engine)
        if full_s is None or full_s > CREEP_S:
            continue
        usage = float(engine.kv_usage[np.isfinite(engine.kv_usage)][-1])
        return Finding(
            code="pool-filling",
            verdict="kv-bound",
            message=f"the KV pool is {percent(usage)} full and rises with the same requests running: full in about "
            f"{span(full_s)}, and then they preempt each other. That nobody waits yet is not health",
            value=full_s,
            remedy="lower --max-num-seqs so that running requests can end within the pool, or --kv-cache-dtype fp8, "
            "more memory, or shorter answers",
            remedy_code="lower-max-num-seqs",
            evidence=(*_usage(evidence), *_pool_by_rise(evidence, engine, full_s)),
        )
    return None


def _over_committed(evidence: Evidence) -> Finding | None:
    """Each running request holds so much that max_num_seqs of them do not fit, and preemptions have been seen."""
    limit = evidence.deployment.seqs_limit
    total = evidence.last("vllm:num_preemptions_total")
    for engine in evidence.engines:
        part = _share_of_one(engine)
        if limit is None or part is None or part * limit <= 1 or not total or evidence.preemptions_per_min is not None:
            continue
        tokens = f", {part * evidence.pool_tokens:,.0f} tokens of it" if evidence.pool_tokens else ""
        return Finding(
            code="over-committed",
            verdict="lower-max-num-seqs",
            message=f"each request holds {percent(part)} of the KV pool{tokens}, a cost per request that short ones "
            f"have, too, if layers keep a fixed state: {int(1 / part)} fit, and max_num_seqs {limit} preempts "
            f"(the counter is at {total:,.0f})",
            value=1 / part,
            remedy=f"--max-num-seqs {max(1, int(1 / part))}, or more KV memory",
            remedy_code="lower-max-num-seqs",
            evidence=_usage(evidence),
            against=("a counter that was read once has no rate: scrape twice to see whether it still rises",),
        )
    return None


# what they are told by


def _seconds_until_full(engine: EngineGauges) -> float | None:
    """When the pool is full if it goes on like this; None without a steady rise at a high level."""
    known = np.isfinite(engine.kv_usage) & np.isfinite(engine.running)
    time_s, usage, running = engine.time_s[known], engine.kv_usage[known], engine.running[known]
    if len(usage) < 3 or np.isnan(time_s).any() or usage[-1] < CREEP_FROM or running.min() < 1:
        return None
    if running.max() - running.min() > 0.1 * running.max() or usage[-1] >= FULL + 0.04:
        return None
    is_rising = share(np.diff(usage) >= -0.002) >= 0.9 and usage[-1] - usage[0] > 0.01
    slope = float(np.polyfit(time_s - time_s[0], usage, 1)[0])
    return float((1 - usage[-1]) / slope) if is_rising and slope > 0 else None


def _pool_by_rise(evidence: Evidence, engine: EngineGauges, full_s: float) -> tuple[str, ...]:
    """The pool's size by the tokens that made it rise."""
    rate = evidence.whole.output_tokens_per_s
    usage = engine.kv_usage[np.isfinite(engine.kv_usage)]
    if not rate or usage[-1] >= 1:
        return ()
    tokens = rate * full_s / (1 - float(usage[-1])) / evidence.num_engines
    return (f"{rate:,.0f} generated tokens/s fill it: the pool holds about {tokens:,.0f} tokens",)


def _share_of_one(engine: EngineGauges) -> float | None:
    """The share of the pool that one running request holds."""
    both = (engine.running >= 1) & np.isfinite(engine.kv_usage)
    return float((engine.kv_usage[both] / engine.running[both]).mean()) if both.any() else None


def _usage(evidence: Evidence) -> tuple[str, ...]:
    usages = [one.kv_usage[np.isfinite(one.kv_usage)] for one in evidence.engines]
    usages = [usage for usage in usages if len(usage)]
    if not usages:
        return ()
    top = max(usages, key=lambda usage: float(usage.mean()))
    return (f"KV usage {percent(float(top.mean()))} on average, {percent(float(top.max()))} at most",)


def _fits(evidence: Evidence) -> tuple[str, ...]:
    """How many requests of the mean length the pool holds."""
    whole, pool = evidence.whole, evidence.pool_tokens
    if pool is None or whole.prompt_tokens is None or whole.output_tokens is None:
        return ()
    mean_tokens = whole.prompt_tokens + whole.output_tokens / 2
    return (f"the pool of {pool:,.0f} tokens holds {pool / mean_tokens:,.0f} requests at their mean footprint",)
