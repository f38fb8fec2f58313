"""Conditions that are no single steady server: change within the window, several servers, or too little to go by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conditions.families import budget_bound, healthy, is_calm, kv_storm, seq_capped, under_used
from conditions.hosts import rate_for
from conditions.metrics import scrape_times, series_of
from conditions.served import serve_arrivals
from conditions.story import (
    WARM_UP_S,
    Condition,
    Draw,
    Played,
    Story,
    Window,
    draw_host,
    draw_lengths_of,
    pick,
    play,
    tell,
)
from conditions.traffic import Phase, draw_arrivals
from conditions.truth import truth_of
from maitre.metric_series import MetricSeries
from maitre.simulator.step import SEQS
from maitre.verify.verdict import VerdictName

DrawCondition = Callable[[np.random.Generator, str], Condition | None]
"""Draws a condition of a name; None when its truth does not hold."""

DECIDING = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:request_queue_time_seconds",
)
"""Families without which nobody can tell why requests take long."""
DOWN_S = 90.0
"""From the last scrape of a server that stops to the first one of its successor."""
_CANNOT_TELL: frozenset[VerdictName] = frozenset({"cannot-tell"})


def traffic_grows(generator: np.random.Generator, name: str) -> Condition | None:
    """Half of the window is calm; in the other half more requests come than the slots serve."""
    lengths = draw_lengths_of(generator, "chat", "code")
    host = draw_host(generator, pick(generator, (16, 24, 32)), 8192)
    full_rps = rate_for(host, lengths, host.server.max_num_seqs)
    half_s = pick(generator, (900.0, 1200.0))
    phases = (
        Phase(lengths, 0.3 * full_rps, WARM_UP_S + half_s),
        Phase(lengths, generator.uniform(1.1, 1.3) * full_rps, half_s),
    )
    story = Story(
        "traffic-grows", "seq-capped", host, Window(2 * half_s), phases, also_right=_CANNOT_TELL,
        remedy="raise-max-num-seqs", is_clear=False,
    )  # fmt: skip
    played = play(story, generator)
    calm = truth_of(played.served, WARM_UP_S, WARM_UP_S + half_s)
    busy = truth_of(played.served, WARM_UP_S + half_s, WARM_UP_S + 2 * half_s)
    holds = is_calm(calm) and busy.bound(SEQS) > 0.7 and busy.kv_usage_max < 0.5
    return replace(tell(played, name, generator), truth=(calm, busy)) if holds else None


def lengths_change(generator: np.random.Generator, name: str) -> Condition | None:
    """Chat becomes code or retrieval in the middle of the window; the server takes both without a queue."""
    before, after = draw_lengths_of(generator, "chat"), draw_lengths_of(generator, "rag", "code")
    host = draw_host(generator, 256, 8192)
    half_s = pick(generator, (900.0, 1200.0))
    num_running = generator.uniform(5, 15)
    phases = (
        Phase(before, rate_for(host, before, num_running), WARM_UP_S + half_s),
        Phase(after, rate_for(host, after, num_running), half_s),
    )
    window = Window(2 * half_s)
    story = Story("lengths-change", "defaults-suffice", host, window, phases, also_right=_CANNOT_TELL, is_clear=False)
    played = play(story, generator)
    holds = is_calm(played.truth) and played.truth.kv_usage_max < 0.5
    return tell(played, name, generator) if holds else None


def day_and_night(generator: np.random.Generator, name: str) -> Condition | None:
    """Too few slots by day, hardly any traffic by night: averages over both hide the queue."""
    lengths = draw_lengths_of(generator, "chat", "code")
    host = draw_host(generator, pick(generator, (8, 16, 24)), 8192)
    full_rps = rate_for(host, lengths, host.server.max_num_seqs)
    night = Phase(lengths, 0.02 * full_rps, 1200.0)
    day = Phase(lengths, generator.uniform(1.1, 1.25) * full_rps, 900.0)
    phases = (replace(night, duration_s=WARM_UP_S + night.duration_s), day, night)
    story = Story(
        "day-and-night", "seq-capped", host, Window(2 * night.duration_s + day.duration_s), phases,
        also_right=_CANNOT_TELL, remedy="raise-max-num-seqs", is_clear=False,
    )  # fmt: skip
    played = play(story, generator)
    start_s = WARM_UP_S + night.duration_s
    busy = truth_of(played.served, start_s, start_s + day.duration_s)
    holds = busy.bound(SEQS) > 0.7 and busy.kv_usage_max < 0.5
    return replace(tell(played, name, generator), truth=(played.truth, busy)) if holds else None


def restart_in_the_middle(generator: np.random.Generator, name: str) -> Condition | None:
    """The server is started anew halfway; all counters begin again at zero, and the traffic goes on."""
    draw = pick(generator, (healthy, under_used, seq_capped, budget_bound))
    played = draw(generator)
    if played is None or not played.story.phases:
        return None
    told = tell(played, name, generator)
    middle_s = (told.start_s + told.end_s) / 2
    again = _served_again(played, generator)
    story = played.story
    times = scrape_times(0.0, story.window.duration_s / 2 - DOWN_S, story.window.interval_s, generator)
    after = series_of(again.served, times, name, middle_s + DOWN_S, generator)
    return replace(
        told,
        family="restart",
        also_right=told.also_right | _CANNOT_TELL,
        is_clear=False,
        series=joined(cut(told.series, told.start_s, middle_s), after),
        facts=told.facts | {"restart": f"at {middle_s:.0f}"},
    )


def one_of_several_is_sick(generator: np.random.Generator, name: str) -> Condition | None:
    """Three replicas are calm, and one of them is not: it was started with other limits, or gets other traffic."""
    sick = pick(generator, (seq_capped, budget_bound, kv_storm))(generator)
    if sick is None:
        return None
    calm: list[Played] = []
    while len(calm) < 3:
        other = pick(generator, (under_used, under_used, healthy))(generator)
        if other is not None:
            calm.append(other)
    told = tell(sick, name, generator, f"{name}-0")
    others = []
    for i, played in enumerate(calm, 1):
        shorter = min(sick.story.window.duration_s, played.story.window.duration_s)
        story = replace(played.story, window=replace(played.story.window, duration_s=shorter))
        others.append(tell(replace(played, story=story), name, generator, f"{name}-{i}"))
    one_model = [replace_label(one.series, "model_name", sick.story.host.server.model) for one in others]
    return replace(
        told,
        family="one-replica-sick",
        also_right=told.also_right | _CANNOT_TELL,
        is_clear=False,
        series=[*told.series, *(series for one in one_model for series in one)],
        truth=(sick.truth, *(played.truth for played in calm)),
    )


def families_missing(generator: np.random.Generator, name: str) -> Condition | None:
    """What would decide is not exposed: no queue, no KV usage, no preemptions."""
    played = pick(generator, (healthy, seq_capped, budget_bound))(generator)
    if played is None:
        return None
    told = tell(played, name, generator)
    kept = [one for one in told.series if not one.name.startswith(DECIDING)]
    return _abstention(told, "families-missing", kept)


def two_scrapes(generator: np.random.Generator, name: str) -> Condition | None:
    """Two looks, seconds apart."""
    played = pick(generator, (healthy, under_used, seq_capped))(generator)
    if played is None:
        return None
    told = tell(played, name, generator)
    looks = [first(one, 2) for one in told.series]
    return _abstention(told, "two-scrapes", looks, also_right=frozenset({told.verdict}))


def cut(series: Sequence[MetricSeries], start_s: float, end_s: float) -> list[MetricSeries]:
    """The samples from start to end, since the epoch."""
    return [_masked(one, (one.time_s >= start_s) & (one.time_s < end_s)) for one in series]


def first(series: MetricSeries, num: int) -> MetricSeries:
    """The first samples."""
    return _masked(series, np.arange(len(series.time_s)) < num)


def joined(before: Sequence[MetricSeries], after: Sequence[MetricSeries]) -> list[MetricSeries]:
    """Series of the same names and labels, one behind the other in time."""
    later = {(one.name, *sorted(one.labels.items())): one for one in after}
    result = []
    for one in before:
        other = later[(one.name, *sorted(one.labels.items()))]
        times, values = (np.concatenate(pair) for pair in ((one.time_s, other.time_s), (one.values, other.values)))
        result.append(MetricSeries(one.name, one.labels, times, values))
    return result


def replace_label(series: Sequence[MetricSeries], label: str, value: str) -> list[MetricSeries]:
    """The same series with another value of a label."""
    return [MetricSeries(one.name, {**one.labels, label: value}, one.time_s, one.values) for one in series]


def _masked(series: MetricSeries, mask: NDArray[np.bool_]) -> MetricSeries:
    return MetricSeries(series.name, series.labels, series.time_s[mask], series.values[mask])


def _served_again(played: Played, generator: np.random.Generator) -> Played:
    """The same server with new requests of the same traffic, from an empty start."""
    story = played.story
    workload = draw_arrivals(story.phases, story.host.server.max_model_len, generator)
    assert workload is not None
    return replace(played, served=serve_arrivals(story.host, workload, generator))


def _abstention(
    told: Condition, family: str, series: list[MetricSeries], also_right: frozenset[VerdictName] = frozenset()
) -> Condition:
    return replace(
        told,
        family=family,
        verdict="cannot-tell",
        also_right=also_right,
        remedy=None,
        is_clear=False,
        series=series,
        facts=told.facts | {"behind it": told.verdict},
    )


HARD: dict[str, DrawCondition] = {
    "traffic-grows": traffic_grows,
    "lengths-change": lengths_change,
    "day-and-night": day_and_night,
    "restart": restart_in_the_middle,
    "one-replica-sick": one_of_several_is_sick,
    "families-missing": families_missing,
    "two-scrapes": two_scrapes,
}


def of_one_server(draw: Draw) -> DrawCondition:
    """A steady family as a condition."""

    def draw_condition(generator: np.random.Generator, name: str) -> Condition | None:
        played = draw(generator)
        return None if played is None else tell(played, name, generator)

    return draw_condition
