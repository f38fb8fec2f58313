"""What requests wait for: slots, KV blocks, the token budget, adapters, or something that is deferred.

Each cause leaves its own mark while requests wait (vLLM's scheduler, `v1/core/sched/scheduler.py`): running at
max_num_seqs; a pool that is full, or too full for the next prompt, which is admitted only when all of it fits (0.19 and
later); steps that are filled up to the token budget.
"""

from __future__ import annotations

import numpy as np

from maitre.verify.engine_gauges import AT_LIMIT, EngineGauges, share
from maitre.verify.evidence import Evidence
from maitre.verify.verdict import Finding
from maitre.verify.words import many, percent

MOSTLY = 0.5
"""A cause binds when it is there in this share of the samples in which requests wait."""
FULL = 0.95
"""KV usage from which a pool counts as full: what is left is less than a long prompt's blocks."""
ROOM = 0.85
"""KV usage up to which more requests fit."""
FILLED = 0.6
"""Share of the token budget in the mean step from which the budget binds: a step is either full or a short rest."""
EMPTY = 0.3
"""Share of it below which it does not."""


def _stalled(evidence: Evidence, queue: EngineGauges, _: int | None) -> Finding | None:
    """Requests wait, nothing runs, and the pool is free: the scheduler admits nothing."""
    tokens = evidence.whole.output_tokens_per_s
    nothing_runs = len(queue.running) >= 3 and np.nanmax(queue.running, initial=0) == 0
    if not nothing_runs or tokens:
        return None
    usage = float(np.nanmean(queue.kv_usage)) if np.isfinite(queue.kv_usage).any() else None
    return Finding(
        code="stalled-scheduler",
        verdict="bug-in-vllm",
        message="requests wait, none runs, and no tokens come: the scheduler admits nothing",
        remedy="restart the server; a request that can never fit the KV pool blocks the queue in several versions "
        "(vllm-project/vllm#35541), so look for one longer than the pool; then report it with the log",
        remedy_code="report-a-defect",
        evidence=(f"running 0 in all {len(queue.running)} samples with waiting > 0",
                  *([f"KV usage {percent(usage)}"] if usage is not None else [])),
    )  # fmt: skip


def _slots_and_pool(evidence: Evidence, queue: EngineGauges, limit: int | None) -> Finding | None:
    """Both bind: more slots would only preempt."""
    if not (_at_limit(queue, limit) and _kv_mean(queue) > ROOM):
        return None
    return Finding(
        code="slots-and-pool-full",
        verdict="kv-bound",
        message=f"running stands at {_limit_text(limit, queue)} and the KV pool is {percent(_kv_mean(queue))} full: "
        "the server is at its capacity",
        remedy="more KV memory (--kv-cache-dtype fp8, a higher --gpu-memory-utilization, more GPUs), shorter requests, "
        "or another replica; a higher --max-num-seqs would only preempt",
        remedy_code="more-memory",
        evidence=_numbers(queue),
        against=_preempting(evidence),
    )


def _slots(evidence: Evidence, queue: EngineGauges, limit: int | None) -> Finding | None:
    if not _at_limit(queue, limit) or _kv_mean(queue) > ROOM:
        return None
    usage = _kv_mean(queue)
    room = f": the pool would hold about {min(99.0, 0.9 / usage):.0f} times as many" if 0 < usage < 0.45 else ""
    return Finding(
        code="slot-bound",
        verdict="seq-capped",
        message=f"requests wait while running stands at {_limit_text(limit, queue)} and the KV pool is "
        f"{percent(usage)} full{room}",
        remedy="raise --max-num-seqs, twice at a time, and --max-num-batched-tokens where it is below four times that",
        remedy_code="raise-max-num-seqs",
        evidence=(*_numbers(queue), *_guessed(evidence, limit)),
        against=_preempting(evidence),
    )


def _pool(evidence: Evidence, queue: EngineGauges, limit: int | None) -> Finding | None:
    full = share(np.nan_to_num(queue.kv_usage) >= FULL)
    gated = _gated(evidence, queue)
    if full < MOSTLY and gated < MOSTLY:
        return None
    how = f"full in {percent(full)} of the samples" if full >= MOSTLY else "too full for the next prompt"
    return Finding(
        code="pool-bound",
        verdict="kv-bound",
        message=f"requests wait for KV blocks: the KV pool is {how}, with {_limit_text(limit, queue)} not reached",
        remedy="more KV memory (--kv-cache-dtype fp8, a higher --gpu-memory-utilization, more GPUs) or shorter "
        "requests (--max-model-len); --max-num-seqs does not bind",
        remedy_code="fp8-kv-cache",
        evidence=_numbers(queue),
    )


def _deferred(evidence: Evidence, queue: EngineGauges, _: int | None) -> Finding | None:
    deferred = evidence.mean("vllm:num_requests_waiting_by_reason", reason="deferred")
    waiting = evidence.mean("vllm:num_requests_waiting_by_reason", reason="capacity")
    if not deferred or deferred < MOSTLY * (deferred + (waiting or 0)):
        return None
    return Finding(
        code="deferred",
        verdict="other",
        message="most of the waiting requests are deferred: they wait for remote KV blocks, a grammar or an adapter, "
        "not for capacity",
        remedy="look at the KV connector, structured outputs and --max-loras; neither limit binds",
        evidence=(f"deferred {deferred:.1f} of {deferred + (waiting or 0):.1f} waiting", *_numbers(queue)),
    )


def _adapters(evidence: Evidence, queue: EngineGauges, _: int | None) -> Finding | None:
    deployment = evidence.deployment
    shows_adapters = any(one.name == "vllm:lora_requests_info" for one in evidence.series)
    if not (deployment.enable_lora or shows_adapters):
        return None
    running = float(np.nanmean(queue.running)) if np.isfinite(queue.running).any() else 0.0
    slots = deployment.max_loras or 1
    return Finding(
        code="adapter-slots",
        verdict="other",
        message=f"neither limit binds, and LoRA is on with {many(slots, 'adapter slot')} (--max-loras): requests for "
        "other adapters wait for their turn",
        remedy="raise --max-loras to the number of adapters in use at a time; the two limits are not the cause",
        remedy_code="raise-max-loras",
        evidence=(f"running {running:.1f}", *_numbers(queue)),
    )


def _budget(evidence: Evidence, queue: EngineGauges, limit: int | None) -> Finding | None:
    filled = budget_share(evidence)
    if limit is None or filled is None or filled < FILLED:
        return None
    return Finding(
        code="budget-bound",
        verdict="raise-token-budget",
        message=f"requests wait for prefill: the mean step takes {percent(filled)} of the token budget of "
        f"{evidence.deployment.tokens_limit:,}, with running below {limit} and the KV pool "
        f"{percent(_kv_mean(queue))} full",
        remedy="raise --max-num-batched-tokens, twice at a time, and watch the inter-token latency",
        remedy_code="raise-token-budget",
        evidence=_numbers(queue),
    )


def unexplained(evidence: Evidence, queue: EngineGauges, limit: int | None) -> Finding:
    """Requests wait, and no cause is shown: say what would show it."""
    missing = []
    if limit is None:
        missing.append("name the limit with --max-num-seqs, or give the server's command after --")
    if evidence.deployment.tokens_limit is None:
        missing.append("name the token budget with --max-num-batched-tokens")
    if evidence.whole.num_steps is None:
        missing.append("give two or more scrapes, so that steps and tokens can be counted")
    if np.isnan(queue.kv_usage).all():
        missing.append("a scrape that has vllm:kv_cache_usage_perc")
    return Finding(
        code="unexplained-queue",
        verdict="cannot-tell",
        message="requests wait, and the metrics do not show for what: slots, KV blocks, the token budget, adapters "
        "(LoRA), a grammar or remote KV blocks",
        remedy="; ".join(missing) or "look at the log and the traffic while requests wait",
        remedy_code="measure-more",
        evidence=_numbers(queue),
        against=_excluded(evidence, queue, limit),
    )


# what they are told by


def budget_share(evidence: Evidence) -> float | None:
    """Computed tokens of the mean step over the token budget; None where steps, tokens or budget are not known.

    `iteration_tokens_total` counts a prompt when its prefill ends and not when it is scheduled, so only its number of
    observations is used here: one a step.
    """
    whole, budget = evidence.whole, evidence.deployment.tokens_limit
    if not whole.num_steps or budget is None or whole.duration_s is None or whole.output_tokens_per_s is None:
        return None
    prompt_tokens = (whole.prompt_tokens_per_s or 0.0) * (1 - (whole.prefix_hit_rate or 0.0))
    return (prompt_tokens + whole.output_tokens_per_s) * whole.duration_s / whole.num_steps / budget


def limit_of(evidence: Evidence, queue: EngineGauges) -> int | None:
    """max_num_seqs as it is known, or as a plateau of the running requests shows it while others wait."""
    known = evidence.deployment.seqs_limit
    running = queue.running[np.isfinite(queue.running)]
    if known is not None or len(running) < 8:
        return known
    top = float(running.max())
    is_plateau = top >= 1 and share(running >= min(top - 1, AT_LIMIT * top)) >= 0.9 and share(running == top) >= MOSTLY
    return int(top) if is_plateau else None


def _at_limit(queue: EngineGauges, limit: int | None) -> bool:
    running = queue.running[np.isfinite(queue.running)]
    return limit is not None and len(running) > 0 and share(running >= AT_LIMIT * limit) >= MOSTLY


def _gated(evidence: Evidence, queue: EngineGauges) -> float:
    """Share of the samples in which the free blocks do not hold a mean prompt."""
    prompt, pool = evidence.whole.prompt_tokens, evidence.pool_tokens
    if prompt is None or pool is None:
        return 0.0
    return share((1 - np.nan_to_num(queue.kv_usage)) * pool < prompt)


def _kv_mean(queue: EngineGauges) -> float:
    usage = queue.kv_usage[np.isfinite(queue.kv_usage)]
    return float(usage.mean()) if len(usage) else 0.0


def _numbers(queue: EngineGauges) -> tuple[str, ...]:
    """The gauges while requests wait."""
    named = (("waiting", queue.waiting), ("running", queue.running))
    means = [f"{name} {float(np.nanmean(values)):.1f}" for name, values in named if np.isfinite(values).any()]
    usage = [f"KV usage {percent(_kv_mean(queue))}"] if np.isfinite(queue.kv_usage).any() else []
    return (f"while requests wait: {', '.join([*means, *usage])}",)


def _guessed(evidence: Evidence, limit: int | None) -> tuple[str, ...]:
    """Say so when max_num_seqs is not known but seen."""
    if evidence.deployment.seqs_limit is not None:
        return ()
    return (f"max_num_seqs is not named: {limit} is where running stops while others wait",)


def _preempting(evidence: Evidence) -> tuple[str, ...]:
    rate = evidence.preemptions_per_min
    return (f"{rate:.1f} preemptions a minute",) if rate else ()


def _excluded(evidence: Evidence, queue: EngineGauges, limit: int | None) -> tuple[str, ...]:
    """Causes that the metrics rule out."""
    out = []
    if limit is not None and not _at_limit(queue, limit):
        out.append(f"not slots: running stays below {limit}")
    if np.isfinite(queue.kv_usage).any() and _kv_mean(queue) < ROOM and not _gated(evidence, queue):
        out.append(f"not KV blocks: the pool is {percent(_kv_mean(queue))} full")
    filled = budget_share(evidence)
    if filled is not None and filled < EMPTY:
        out.append(f"not the token budget: the mean step takes {percent(filled)} of it")
    return tuple(out)


def _limit_text(limit: int | None, queue: EngineGauges) -> str:
    return f"max_num_seqs {limit}" if limit is not None else f"{np.nanmax(queue.running, initial=0):.0f} requests"


CAUSES = (_stalled, _slots_and_pool, _slots, _pool, _deferred, _adapters, _budget)
"""In the order in which they are looked for."""
