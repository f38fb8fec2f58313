"""The families of steady conditions, one server each: what is drawn, and what must be true of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conditions.hosts import Host, footprint_tokens, mean_tokens, prompt_load, rate_for
from conditions.story import (
    MAX_MODEL_LEN,
    WARM_UP_S,
    Draw,
    Played,
    Story,
    draw_host,
    draw_lengths_of,
    draw_window,
    pick,
    play,
    play_turned,
    steady,
)
from conditions.traffic import Phase
from conditions.truth import Truth
from maitre.gpus import find_gpu
from maitre.simulator.step import KV_BLOCKS, SEQS, TOKEN_BUDGET
from maitre.verify.verdict import VerdictName
from maitre.vllm.defaults import default_cell
from maitre.workload.synthetic import LengthSpec

CALM_ITL_P99_S = 0.25
"""A server is called calm only if 99 of 100 tokens come this fast after the one before."""
STALL_S = 0.15
"""One is said to stall only if the slower mode of its tokens is slower than this."""
HELP = 0.7
"""A remedy counts only if it brings the latency that it is for down to this share, on the same traffic."""


def healthy(generator: np.random.Generator) -> Played | None:
    """The KV pool is used by more than half, and nobody waits."""
    lengths = draw_lengths_of(generator)
    num_running = generator.uniform(40, 110)
    host = draw_host(generator, pick(generator, (256, 512)), pick(generator, (2048, 4096, 8192)))
    rate_rps = rate_for(host, lengths, num_running)
    if prompt_load(host, lengths, rate_rps) > 0.2:
        return None
    host = host.without_prefix_caching()  # without shared prefixes it changes nothing but how long the replay takes
    host = _filled(host, lengths, num_running, generator.uniform(0.52, 0.58))
    story = Story("healthy", "healthy", host, draw_window(generator))
    played = play(steady(story, lengths, rate_rps, generator, bunched=False), generator)
    true = played.truth
    holds = is_calm(true) and true.kv_usage >= 0.5 and true.kv_usage_max < 0.97
    return played if holds else None


def under_used(generator: np.random.Generator) -> Played | None:
    """Real traffic on vLLM's defaults, nobody waits, and the KV pool is never half full."""
    lengths, story = _default_story(generator, "under-used", "defaults-suffice")
    room = 0.3 * story.host.kv_tokens / footprint_tokens(lengths)
    num_running = min(2 ** generator.uniform(2.3, 6.6), room)
    rate_rps = rate_for(story.host, lengths, num_running)
    if prompt_load(story.host, lengths, rate_rps) > 0.3:
        return None
    played = play(steady(story, lengths, rate_rps, generator), generator)
    holds = is_calm(played.truth) and played.truth.kv_usage_max < 0.5 and played.truth.running >= 3
    return played if holds else None


def brief_queues(generator: np.random.Generator) -> Played | None:
    """Bunches of requests wait for some steps now and then; no limit binds for long."""
    lengths, story = _default_story(generator, "brief-queues", "defaults-suffice")
    room = 0.3 * story.host.kv_tokens / footprint_tokens(lengths)
    num_running = min(generator.uniform(8, 60), room)
    rate_rps = rate_for(story.host, lengths, num_running)
    if not 0.05 < prompt_load(story.host, lengths, rate_rps) < 0.3:
        return None
    story = replace(story, also_right=frozenset({"healthy"}))
    phase = Phase(lengths, rate_rps, story.window.end_s, generator.uniform(4, 9))
    played = play(replace(story, phases=(phase,)), generator)
    true = played.truth
    is_brief = 0.02 < true.waiting_share < 0.12 and not true.num_preemptions and not true.is_itl_bimodal
    return played if is_brief and true.kv_usage_max < 0.5 else None


def idle(generator: np.random.Generator) -> Played | None:
    """A handful of requests, or none at all."""
    lengths, story = _default_story(generator, "idle", "not-saturated")
    story = replace(story, also_right=frozenset({"cannot-tell"}))
    rate_rps = pick(generator, (0, 3, 8, 15)) / story.window.duration_s
    early = Phase(lengths, 4 / WARM_UP_S, WARM_UP_S)  # a server that has answered before; then perhaps nobody comes
    played = play(replace(story, phases=(early, Phase(lengths, rate_rps, story.window.duration_s))), generator)
    return played if played.truth.running < 0.3 else None


def client_limited(generator: np.random.Generator) -> Played | None:
    """A few clients, each with one request at a time: the server could hold many more."""
    lengths, story = _default_story(generator, "client-limited", "client-limited")
    num_clients = int(2 ** generator.uniform(1, 5.6))
    played = play(replace(story, clients=(lengths, num_clients)), generator)
    true = played.truth
    holds = true.waiting < 0.02 * num_clients and true.running > 0.95 * num_clients and true.kv_usage_max < 0.6
    if not holds or story.host.server.max_num_seqs < 4 * num_clients:
        return None
    stalls: frozenset[VerdictName] = frozenset({"other"} if true.is_itl_bimodal else ())
    is_clear = num_clients >= 4  # fewer might be as constant by chance
    return replace(played, story=replace(played.story, also_right=stalls, is_clear=is_clear))


def seq_capped(generator: np.random.Generator) -> Played | None:
    """Every slot is taken and requests wait, while most of the KV pool is free."""
    lengths = draw_lengths_of(generator)
    host = draw_host(generator, pick(generator, (4, 8, 16, 32, 48)), pick(generator, (2048, 4096, 8192)))
    slots = host.server.max_num_seqs
    story = Story("seq-capped", "seq-capped", host, draw_window(generator), remedy="raise-max-num-seqs")
    if generator.random() < 0.4:
        story = replace(story, clients=(lengths, int(slots * generator.uniform(1.5, 4))))
    else:
        story = steady(story, lengths, generator.uniform(1.02, 1.2) * rate_for(host, lengths, slots), generator)
    played = play(story, generator)
    true = played.truth
    if true.bound(SEQS) < 0.7 or true.waiting_share < 0.8 or true.kv_usage_max > 0.5:
        return None
    better = play_turned(played, host.turned(max_num_seqs=4 * slots), generator)
    return played if better.ttft_mean_s < HELP * true.ttft_mean_s else None


def slots_at_peaks(generator: np.random.Generator) -> Played | None:
    """Bunches of requests fill the slots and wait, for a part of the time; most of the KV pool is free."""
    lengths = draw_lengths_of(generator, "chat", "code")
    host = draw_host(generator, pick(generator, (8, 16, 32)), 8192)
    rate_rps = generator.uniform(0.6, 0.85) * rate_for(host, lengths, host.server.max_num_seqs)
    story = Story(
        "slots-at-peaks", "seq-capped", host, draw_window(generator), also_right=frozenset({"cannot-tell"}),
        remedy="raise-max-num-seqs", is_clear=False,
    )  # fmt: skip
    phase = Phase(lengths, rate_rps, story.window.end_s, generator.uniform(2, 6))
    played = play(replace(story, phases=(phase,)), generator)
    true = played.truth
    if not 0.2 <= true.bound(SEQS) <= 0.6 or true.kv_usage_max > 0.5:
        return None
    better = play_turned(played, host.turned(max_num_seqs=4 * host.server.max_num_seqs), generator)
    return played if better.ttft_mean_s < HELP * true.ttft_mean_s else None


def budget_bound(generator: np.random.Generator) -> Played | None:
    """The token budget is spent on every step, so that requests wait though slots and KV blocks are free."""
    lengths = draw_lengths_of(generator, "rag", "summarisation", "code")
    host = draw_host(generator, pick(generator, (64, 128, 256)), pick(generator, (256, 384, 512)))
    prompt, output = mean_tokens(lengths)
    num_running = host.server.max_num_batched_tokens * output / (prompt + output)
    is_roomy = num_running * footprint_tokens(lengths) < 0.4 * host.kv_tokens
    if num_running > 0.6 * host.server.max_num_seqs or not is_roomy:
        return None
    rate_rps = generator.uniform(1.02, 1.2) * rate_for(host, lengths, num_running)
    story = Story("budget-bound", "raise-token-budget", host, draw_window(generator), remedy="raise-token-budget")
    played = play(steady(story, lengths, rate_rps, generator), generator)
    true = played.truth
    if true.bound(TOKEN_BUDGET) < 0.7 or true.waiting_share < 0.7 or true.kv_usage_max > 0.6:
        return None
    if true.running > 0.8 * host.server.max_num_seqs:
        return None
    budget = max(2048, 4 * host.server.max_num_batched_tokens)
    better = play_turned(played, host.turned(max_num_batched_tokens=budget), generator)
    return played if better.ttft_mean_s < HELP * true.ttft_mean_s else None


def kv_bound(generator: np.random.Generator) -> Played | None:
    """The KV pool is full and requests wait for it; slots are free."""
    played = _overfull(generator, draw_lengths_of(generator, "rag", "summarisation"), "kv-bound")
    true = played.truth
    holds = true.bound(KV_BLOCKS) >= 0.6 and true.waiting_share >= 0.7 and true.kv_usage >= 0.75
    return played if holds and true.running < 0.8 * played.story.host.server.max_num_seqs else None


def kv_storm(generator: np.random.Generator) -> Played | None:
    """Outputs outgrow the KV pool, and requests are preempted again and again; slots are free."""
    played = _overfull(generator, draw_lengths_of(generator, "chat", "code"), "kv-storm")
    return played if _preempts(played.truth) and played.truth.kv_usage >= 0.8 else None


def too_many_slots(generator: np.random.Generator) -> Played | None:
    """As many requests run as there are slots, and their outputs outgrow the KV pool.

    Fewer slots end most preemptions and the stalls that they make, at a loss of less than 15 % of the throughput.
    """
    lengths = draw_lengths_of(generator, "chat", "code")
    num_running = generator.uniform(15, 50)
    story = _overfull_story(generator, lengths, num_running, "too-many-slots")
    slots = round(num_running * generator.uniform(0.95, 1.1))
    story = replace(story, host=story.host.turned(max_num_seqs=slots), verdict="lower-max-num-seqs")
    played = play(story, generator)
    true = played.truth
    if not _preempts(true) or true.running < 0.85 * slots:
        return None
    fewer = play_turned(played, story.host.turned(max_num_seqs=round(0.75 * slots)), generator)
    is_better = fewer.num_preemptions < 0.3 * true.num_preemptions and fewer.itl_p99_s < true.itl_p99_s
    return played if is_better and fewer.output_tokens_per_s > 0.85 * true.output_tokens_per_s else None


def bimodal(generator: np.random.Generator) -> Played | None:
    """Long prompts are computed whole between fast decodes, so that everybody's tokens stall."""
    lengths = LengthSpec(
        prompt_median=round(generator.uniform(2500, 6000)), prompt_sigma=0.15,
        output_median=round(generator.uniform(80, 160)), output_sigma=0.5,
    )  # fmt: skip
    host = draw_host(generator, 256, pick(generator, (8192, 16384)))
    num_running = generator.uniform(4, 14)
    rate_rps = rate_for(host, lengths, num_running)
    if not 0.2 < prompt_load(host, lengths, rate_rps) < 0.5:
        return None
    story = Story("bimodal", "other", host, draw_window(generator), remedy="lower-token-budget")
    played = play(steady(story, lengths, rate_rps, generator, bunched=False), generator)
    true = played.truth
    if not true.is_itl_bimodal or true.itl_p99_s < STALL_S or true.waiting_share > 0.2 or true.kv_usage_max > 0.9:
        return None
    smaller = play_turned(played, host.turned(max_num_batched_tokens=2048), generator)
    else_right: VerdictName = "healthy" if true.kv_usage > 0.5 else "defaults-suffice"
    story = replace(played.story, also_right=frozenset({else_right}))
    return replace(played, story=story) if smaller.itl_p99_s < HELP * true.itl_p99_s else None


def is_calm(true: Truth) -> bool:
    """Nobody waits for longer than a step, nobody is preempted, and tokens come at one pace."""
    is_smooth = not true.is_itl_bimodal and true.itl_p99_s < CALM_ITL_P99_S
    return is_smooth and true.waiting_share < 0.02 and not true.num_preemptions


def _default_story(generator: np.random.Generator, family: str, verdict: VerdictName) -> tuple[LengthSpec, Story]:
    host = draw_host(generator, 256, 2048)
    gpu = find_gpu(host.gpu)
    cell = default_cell(host.server.vllm_version, gpu.name, gpu.memory_bytes, MAX_MODEL_LEN)
    host = host.turned(cell.max_num_seqs, cell.max_num_batched_tokens)
    return draw_lengths_of(generator), Story(family, verdict, host, draw_window(generator))


def _overfull(generator: np.random.Generator, lengths: LengthSpec, family: str) -> Played:
    return play(_overfull_story(generator, lengths, generator.uniform(15, 50), family), generator)


def _overfull_story(generator: np.random.Generator, lengths: LengthSpec, num_running: float, family: str) -> Story:
    """More traffic than the KV pool holds; there are slots enough."""
    host = draw_host(generator, pick(generator, (128, 256)), pick(generator, (2048, 4096, 8192)))
    if generator.random() < 0.8:  # with it, preempted requests find their own blocks again
        host = host.without_prefix_caching()
    host = _filled(host, lengths, num_running, 1.0)
    right: frozenset[VerdictName] = frozenset({"kv-bound", "lower-max-num-seqs"})
    story = Story(family, "kv-bound", host, draw_window(generator), also_right=right, remedy="lower-max-num-seqs")
    return steady(story, lengths, generator.uniform(1.0, 1.15) * rate_for(host, lengths, num_running), generator)


def _preempts(true: Truth) -> bool:
    """Twice a minute or more."""
    return true.num_preemptions >= 2 * true.duration_s / 60


def _filled(host: Host, lengths: LengthSpec, num_running: float, usage: float) -> Host:
    """The server with the KV pool that so many requests fill to this share."""
    return host.with_pool(round(num_running * footprint_tokens(lengths) / usage / host.server.block_size))


STEADY: dict[str, Draw] = {
    "healthy": healthy,
    "under-used": under_used,
    "brief-queues": brief_queues,
    "idle": idle,
    "client-limited": client_limited,
    "seq-capped": seq_capped,
    "slots-at-peaks": slots_at_peaks,
    "budget-bound": budget_bound,
    "kv-bound": kv_bound,
    "kv-storm": kv_storm,
    "too-many-slots": too_many_slots,
    "bimodal": bimodal,
}
