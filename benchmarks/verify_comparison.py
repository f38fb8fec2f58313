"""How often a before/after comparison is right, on servers whose truth is known.

    python benchmarks/verify_comparison.py                 500 comparisons of each scenario
    python benchmarks/verify_comparison.py --repeats 50    fewer
    python benchmarks/verify_comparison.py --only nothing  scenarios whose name contains this

A side is 24 sub-windows of 5 minutes. Traffic follows the hours and wanders, as lengths and the server's own speed do:
all are autocorrelated. Requests arrive from outside and the batch follows from Little's law, or a number of clients
waits for answers, or more arrives than the server can do.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from maitre.metric_series import Histogram
from maitre.verify.before_after.comparison import compare_windows
from maitre.verify.window_figures import WindowFigures

Array = NDArray[np.float64]
Rng = np.random.Generator

NUM_WINDOWS, WINDOW_S = 24, 300.0
TTFT = np.array([0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, np.inf])
ITL = np.array([0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, np.inf])
LENGTHS = np.array([1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, np.inf])
BASE_S, PER_SEQ_S, PER_PROMPT_TOKEN_S = 0.012, 0.00015, 40e-6
"""About a 14B model on one H200: a decode step, a sequence more in it, a prompt token more."""
MAX_NUM_SEQS = 128
WANDER = 0.7
"""What a sub-window keeps of its neighbour's deviation."""


@dataclass(frozen=True)
class Scenario:
    """What differs after the change, and what the answer should be."""

    name: str
    expected: tuple[str, ...]
    traffic: float = 1.0
    """Arrivals after the change over those before."""
    prompts: float = 1.0
    """Prompt tokens, the same way."""
    latency: float = 1.0
    """What the same step takes, the same way."""
    rate_rps: float = 3.0
    clients: int = 0
    """Waiting for answers; 0: requests arrive from outside."""
    slots_before: int = MAX_NUM_SEQS
    """max_num_seqs before the change."""


SCENARIOS = (
    Scenario("nothing changed", ("unchanged",)),
    Scenario("nothing changed, few requests", ("unchanged", "not-comparable"), rate_rps=0.4),
    Scenario("nothing changed, 64 clients", ("unchanged",), clients=64),
    Scenario("nothing changed, saturated", ("unchanged",), rate_rps=40.0),
    Scenario("traffic grew by 10 %", ("unchanged",), traffic=1.1),
    Scenario("traffic grew by 30 %", ("unchanged", "not-comparable"), traffic=1.3),
    Scenario("traffic doubled", ("not-comparable", "unchanged"), traffic=2.0),
    Scenario("prompts 15 % longer", ("unchanged", "not-comparable"), prompts=1.15),
    Scenario("prompts twice as long", ("not-comparable",), prompts=2.0),
    Scenario("steps 10 % slower", ("worse",), latency=1.1),
    Scenario("steps 30 % slower", ("worse",), latency=1.3),
    Scenario("steps 30 % slower, traffic grew by 10 %", ("worse",), latency=1.3, traffic=1.1),
    Scenario("steps 20 % faster", ("improved",), latency=0.8),
    Scenario("steps 20 % faster, few requests", ("improved",), latency=0.8, rate_rps=0.4),
    Scenario("steps 10 % faster, 64 clients", ("improved",), latency=0.9, clients=64),
    Scenario("steps 10 % faster, saturated", ("improved",), latency=0.9, rate_rps=40.0),
    Scenario("steps 10 % slower, saturated", ("worse",), latency=1.1, rate_rps=40.0),
    Scenario("a queue at the peak goes away", ("improved", "mixed"), rate_rps=11.0, slots_before=64),
)


def wandering(rng: Rng, spread: float) -> Array:
    """Logarithms of a factor, shape (windows,)."""
    values = rng.standard_normal(NUM_WINDOWS)
    for n in range(1, NUM_WINDOWS):
        values[n] = WANDER * values[n - 1] + np.sqrt(1 - WANDER**2) * values[n]
    return spread * values


def side(rng: Rng, scenario: Scenario, *, is_after: bool) -> list[WindowFigures]:
    """The sub-windows of one side, from 9 to 11 o'clock."""
    traffic = scenario.traffic if is_after else 1.0
    hours = 1 + 0.4 * np.sin(np.linspace(0, np.pi, NUM_WINDOWS))
    rates = scenario.rate_rps * traffic * hours * np.exp(wandering(rng, 0.1))
    prompts = 600 * (scenario.prompts if is_after else 1.0) * np.exp(wandering(rng, 0.05))
    outputs = 250 * np.exp(wandering(rng, 0.05))
    slowness = (scenario.latency if is_after else 1.0) * np.exp(wandering(rng, 0.02))
    start_s = 1e6 if is_after else 0.0
    slots = min(MAX_NUM_SEQS if is_after else scenario.slots_before, scenario.clients or MAX_NUM_SEQS)
    full = (slots, scenario.clients > 0)
    return [
        window(rng, start_s + n * WINDOW_S, rates[n], prompts[n], outputs[n], slowness[n], full)
        for n in range(NUM_WINDOWS)
    ]


def window(
    rng: Rng, start_s: float, rate: float, prompt: float, output: float, slowness: float, full: tuple[int, bool]
) -> WindowFigures:
    """One sub-window, by Little's law; `full`: sequences at once, and whether clients wait for answers."""
    slots, is_closed = full
    base, per_seq = BASE_S * slowness, (PER_SEQ_S * output + PER_PROMPT_TOKEN_S * prompt) * slowness / output
    load = rate * output
    running = load * base / (1 - load * per_seq) if load * per_seq < 1 and not is_closed else np.inf
    is_saturated = running >= slots
    running = min(running, slots)
    itl = base + per_seq * running
    possible = running / itl / output
    arrivals = rng.poisson((possible if is_saturated and is_closed else rate) * WINDOW_S)
    finished = min(arrivals, rng.poisson(possible * WINDOW_S)) if is_saturated and not is_closed else arrivals
    prompts, outputs = (mean * np.exp(0.8 * rng.standard_normal(finished) - 0.32) for mean in (prompt, output))
    waiting = 200.0 if is_saturated and not is_closed else 0.0
    queue = np.full(finished, waiting / max(possible, 1e-9))
    ttft = queue + itl * rng.uniform(1, 2, finished) + PER_PROMPT_TOKEN_S * slowness * prompts
    tokens = float(outputs.sum())
    steps = rng.lognormal(np.log(itl) - 0.02, 0.2, 3000)
    return WindowFigures(
        start_s=start_s, end_s=start_s + WINDOW_S, duration_s=WINDOW_S, num_requests=float(finished),
        arrivals=float(arrivals), prompt_tokens=float(prompts.mean()), output_tokens=float(outputs.mean()),
        prompt_lengths=counted(prompts, LENGTHS), output_lengths=counted(outputs, LENGTHS), prefix_hit_rate=0.2,
        running=running * np.exp(0.02 * rng.standard_normal()), waiting=waiting, waiting_share=float(waiting > 0),
        kv_usage=0.5, preemptions=0.0, output_tokens_per_s=tokens / WINDOW_S,
        prompt_tokens_per_s=float(prompts.sum()) / WINDOW_S, num_steps=WINDOW_S / itl,
        itl=counted(steps, ITL), ttft=counted(ttft, TTFT), queue_time=counted(queue, TTFT),
    )  # fmt: skip


def counted(values: Array, upper: Array) -> Histogram:
    """Values in buckets."""
    counts = np.bincount(np.searchsorted(upper, values), minlength=len(upper))
    return Histogram(upper, counts.astype(np.float64), float(values.sum()))


def answers(scenario: Scenario, repeats: int) -> Iterator[str]:
    """The verdict of every repetition."""
    for number in range(repeats):
        draw = partial(side, np.random.default_rng([number, *scenario.name.encode()]), scenario)
        yield compare_windows(draw(is_after=False), draw(is_after=True)).verdict


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="verdicts of a before/after comparison on servers of known truth")
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--only", default="", help="part of a scenario's name")
    asked = parser.parse_args()
    repeats = asked.repeats
    names = ("improved", "unchanged", "worse", "mixed", "not-comparable")
    print(f"| scenario | right | {' | '.join(names)} |\n|---|---|---|---|---|---|---|")
    for scenario in (one for one in SCENARIOS if asked.only in one.name):
        counts = Counter(answers(scenario, repeats))
        right = sum(counts[name] for name in scenario.expected) / repeats
        shares = " | ".join(f"{counts[name] / repeats:.1%}" for name in names)
        print(f"| {scenario.name} | {right:.1%} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
