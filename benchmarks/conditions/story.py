"""A story: a server, its traffic and a window, with the verdict that is right if its truth holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from conditions.hosts import Host, find_host, mean_tokens, rate_for
from conditions.metrics import scrape_times, series_of
from conditions.served import Served, last_arrival_s, serve_arrivals, serve_clients
from conditions.traffic import Phase, draw_arrivals, draw_at_once
from conditions.truth import Truth, truth_of
from maitre.metric_series import MetricSeries
from maitre.records import Cell
from maitre.verify.verdict import RemedyCode, VerdictName
from maitre.workload.synthetic import LengthSpec

T = TypeVar("T")
WARM_UP_S = 300.0
"""Before the window: the server fills, and its counters are no longer 0."""
EPOCH_S = 1_760_000_400.0
"""When the traffic of every condition begins: any moment would do."""
MAX_MODEL_LEN = 16_384
MODELS_ON_GPUS = (
    *3 * [("qwen2.5-14b", "h200")],
    ("qwen2.5-7b", "h200"),
    ("llama-3.1-8b", "a100-sxm4-80gb"),
    *2 * [("qwen2.5-7b", "l40s")],
)
"""The first is measured and ships with the package, so it comes more often; the others follow the roofline."""
TRAFFIC = {
    "chat": (150, 0.8, 300, 0.9),
    "rag": (1500, 0.5, 200, 0.7),
    "code": (800, 1.0, 500, 1.0),
    "summarisation": (2500, 0.2, 400, 0.6),
}
"""Median and σ of prompts, median and σ of outputs, as in `maitre.workload.reference`."""


@dataclass(frozen=True, slots=True)
class Window:
    """What is looked at, behind the warm-up."""

    duration_s: float
    interval_s: float = 15.0
    """Between two scrapes."""

    @property
    def end_s(self) -> float:
        """Its end, counted from the first moment of the traffic."""
        return WARM_UP_S + self.duration_s


@dataclass(frozen=True, slots=True)
class Story:
    """What is drawn before anything is simulated."""

    family: str
    verdict: VerdictName
    host: Host
    window: Window
    phases: tuple[Phase, ...] = ()
    """From the first moment of the traffic to the end of the window; empty for clients, and for no traffic at all."""
    clients: tuple[LengthSpec, int] | None = None
    """Lengths and number of clients that send their next request when the last one is answered."""
    also_right: frozenset[VerdictName] = frozenset()
    remedy: RemedyCode | None = None
    """The action that helps; None where none is called for."""
    is_clear: bool = True
    """A good judge names it; else it may also abstain."""


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """What a judge is shown, and what is true."""

    name: str
    family: str
    verdict: VerdictName
    also_right: frozenset[VerdictName]
    remedy: RemedyCode | None
    is_clear: bool
    cell: Cell
    """The dials, of the server that the verdict is about."""
    series: list[MetricSeries]
    start_s: float
    """The window, since the epoch."""
    end_s: float
    truth: tuple[Truth, ...] = ()
    """Of each server, or each part of the window, that the condition is made of."""
    facts: dict[str, str] = field(default_factory=dict)

    def is_right(self, verdict: str) -> bool:
        """Whether a verdict is right."""
        return verdict == self.verdict or verdict in self.also_right


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A story that was simulated."""

    story: Story
    served: Served
    truth: Truth


def pick(generator: np.random.Generator, choices: tuple[T, ...]) -> T:
    """One of the choices."""
    return choices[int(generator.integers(len(choices)))]


def draw_lengths_of(generator: np.random.Generator, *kinds: str) -> LengthSpec:
    """Lengths of one of these kinds of traffic, its medians up to a quarter smaller or larger."""
    prompt, prompt_sigma, output, output_sigma = TRAFFIC[pick(generator, kinds or tuple(TRAFFIC))]
    return LengthSpec(
        prompt_median=round(prompt * generator.uniform(0.75, 1.25)),
        prompt_sigma=prompt_sigma,
        output_median=round(output * generator.uniform(0.75, 1.25)),
        output_sigma=output_sigma,
    )


def draw_host(generator: np.random.Generator, max_num_seqs: int, max_num_batched_tokens: int) -> Host:
    """A server with these dials and the memory that vLLM takes by default."""
    cell = Cell(max_num_seqs=max_num_seqs, max_num_batched_tokens=max(max_num_batched_tokens, max_num_seqs))
    return find_host(*pick(generator, MODELS_ON_GPUS), cell, 0.9, MAX_MODEL_LEN)


def draw_window(generator: np.random.Generator) -> Window:
    """How long a window is and how often it is scraped."""
    return Window(
        duration_s=pick(generator, (1200.0, 1200.0, 1200.0, 1500.0, 1800.0, 2400.0)),
        interval_s=pick(generator, (5.0, 15.0, 15.0, 15.0, 30.0)),
    )


def steady(
    story: Story, lengths: LengthSpec, rate_rps: float, generator: np.random.Generator, *, bunched: bool = True
) -> Story:
    """The story with traffic of one rate; where it may come bunched, it does so one time in three."""
    gap_cv2 = pick(generator, (1.0, 1.0, 4.0 if bunched else 1.0))
    return replace(story, phases=(Phase(lengths, rate_rps, story.window.end_s, gap_cv2),))


def play(story: Story, generator: np.random.Generator) -> Played:
    """Simulate a story that has traffic."""
    served = _serve(story, generator)
    assert served is not None
    return Played(story, served, truth_of(served, WARM_UP_S, story.window.end_s))


def play_turned(played: Played, host: Host, generator: np.random.Generator) -> Truth:
    """What would be true of the same traffic on a server with other dials."""
    story = replace(played.story, host=host)
    if story.clients is not None:
        served = serve_clients(host, played.served.workload, story.clients[1], generator)
        end_s = min(story.window.end_s, last_arrival_s(served))
    else:
        served = serve_arrivals(host, played.served.workload, generator)
        end_s = story.window.end_s
    return truth_of(served, WARM_UP_S, end_s)


def tell(played: Played, name: str, generator: np.random.Generator, place: str | None = None) -> Condition:
    """The condition of one server in one window."""
    story = played.story
    scraped_s = scrape_times(WARM_UP_S, story.window.end_s, story.window.interval_s, generator)
    return Condition(
        name=name,
        family=story.family,
        verdict=story.verdict,
        also_right=story.also_right,
        remedy=story.remedy,
        is_clear=story.is_clear,
        cell=story.host.server.cell,
        series=series_of(played.served, scraped_s, place or name, EPOCH_S, generator),
        start_s=EPOCH_S + WARM_UP_S,
        end_s=EPOCH_S + story.window.end_s,
        truth=(played.truth,),
        facts=_facts(story),
    )


def _serve(story: Story, generator: np.random.Generator) -> Served | None:
    if story.clients is None:
        workload = draw_arrivals(story.phases, story.host.server.max_model_len, generator)
        return None if workload is None else serve_arrivals(story.host, workload, generator)
    lengths, num_clients = story.clients
    needed_s = story.window.end_s
    slots = min(num_clients, story.host.server.max_num_seqs)
    num_requests = int(1.3 * needed_s * rate_for(story.host, lengths, slots)) + 2 * num_clients
    while True:
        workload = draw_at_once(lengths, num_requests, story.host.server.max_model_len, generator)
        served = serve_clients(story.host, workload, num_clients, generator)
        if last_arrival_s(served) > needed_s:
            return served
        num_requests = int(1.4 * num_requests)


def _facts(story: Story) -> dict[str, str]:
    host, facts = story.host, {}
    facts["server"] = f"{host.server.model} on {host.gpu}, {host.server.cell}, {host.num_gpu_blocks} blocks"
    for i, phase in enumerate(story.phases):
        prompt, output = mean_tokens(phase.lengths)
        facts[f"phase {i}"] = (
            f"{phase.rate_rps:.3g} requests/s of {prompt:.0f}/{output:.0f} tokens for {phase.duration_s:.0f} s, "
            f"cv² {phase.gap_cv2:g}"
        )
    if story.clients is not None:
        prompt, output = mean_tokens(story.clients[0])
        facts["clients"] = f"{story.clients[1]} with requests of {prompt:.0f}/{output:.0f} tokens"
    return facts


Draw = Callable[[np.random.Generator], Played | None]
"""Draws a story and plays it; None when its truth does not hold."""
