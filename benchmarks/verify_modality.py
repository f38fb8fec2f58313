"""How often `maitre verify` sees two paces of tokens where there is one, and one where there are two.

    python benchmarks/verify_modality.py                2,000 servers with one pace, 200 of each kind with two
    python benchmarks/verify_modality.py --servers 200  fewer

A server is 24 sub-windows of engine steps; every sequence of a step sees the same latency, and batches change slowly.
Judged are the counts of vLLM's default buckets and of finer ones, over all sub-windows and in one alone. Where diptest
is installed, Hartigan's dip test of the log times of one sub-window's steps stands beside them: it sees more than
any histogram holds.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maitre.metric_series import Histogram
from maitre.verify.modes.modality import judge_modes

Array = NDArray[np.float64]
Rng = np.random.Generator

NUM_WINDOWS = 24
DEFAULT = np.array(
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, np.inf]
)
"""vLLM 0.8.5 and later, v1/metrics/buckets.py."""
FINE = np.append(0.002 * 1.15 ** np.arange(46), np.inf)
ANSWERS = ("one-mode", "two-regimes", "two-modes", "cannot-tell")


class Steps(NamedTuple):
    """Durations in seconds and decoding sequences of every step, shape (windows, steps)."""

    durations_s: Array
    batch: Array


def slow_noise(rng: Rng, shape: tuple[int, int], memory: float) -> Array:
    """A process that forgets a share 1 - memory a step, standard deviation 1, over all windows in a row."""
    size = shape[0] * shape[1]
    knots = max(2, int(size * (1 - memory)) + 1)
    values = rng.standard_normal(knots)
    return np.interp(np.linspace(0, knots - 1, size), np.arange(knots), values).reshape(shape)


def batches(rng: Rng, shape: tuple[int, int]) -> Array:
    """Decoding sequences: a mean of 1 to 128, changing over tens of steps."""
    mean = np.exp(rng.uniform(0, np.log(128)))
    return np.maximum(1.0, np.rint(mean * np.exp(0.4 * slow_noise(rng, shape, 0.97))))


def lognormal(rng: Rng, shape: tuple[int, int], median_s: float) -> Array:
    """One pace, narrow or wide."""
    return median_s * np.exp(rng.uniform(0.05, 0.8) * rng.standard_normal(shape))


def shifted_gamma(rng: Rng, shape: tuple[int, int], median_s: float) -> Array:
    """A least time, and a tail."""
    return median_s * (0.7 + 0.15 * rng.gamma(rng.uniform(1, 4), size=shape))


def skewed_to_fast(rng: Rng, shape: tuple[int, int], median_s: float) -> Array:
    """Most steps near the slow end, as with a batch that is full most of the time."""
    return median_s * (0.2 + rng.weibull(rng.uniform(4, 8), size=shape))


def plateau(rng: Rng, shape: tuple[int, int], median_s: float) -> Array:
    """All times alike within a wide range: where noise looks most like valleys."""
    return median_s * rng.uniform(0.5, rng.uniform(2, 6), shape)


def few_prompts(rng: Rng, shape: tuple[int, int], median_s: float) -> Array:
    """A healthy server's prompts: up to 4 % of the steps, 2 to 10 times as long."""
    slow = rng.random(shape) < rng.uniform(0, 0.04)
    spread = np.exp(rng.uniform(0.05, 0.2) * rng.standard_normal(shape))
    return median_s * np.where(slow, rng.uniform(2, 10), 1.0) * spread


def short_prompts(rng: Rng, shape: tuple[int, int], median_s: float) -> Array:
    """Many steps with prompts in them, mostly short: a tail, no second pace."""
    slow = rng.random(shape) < rng.uniform(0.05, 0.3)
    extra = rng.exponential(rng.uniform(0.3, 3), shape)
    return median_s * (np.exp(0.1 * rng.standard_normal(shape)) + np.where(slow, extra, 0.0))


def stragglers(rng: Rng, shape: tuple[int, int], median_s: float) -> Array:
    """A few steps without bound."""
    late = rng.random(shape) < 0.02
    return lognormal(rng, shape, median_s) * np.where(late, 1 + rng.pareto(1.5, shape), 1.0)


def wandering_load(rng: Rng, shape: tuple[int, int], median_s: float) -> Array:
    """Times follow a load that changes over some thousand steps."""
    level = np.exp(rng.uniform(0.05, 0.4) * slow_noise(rng, shape, rng.choice([0.99, 0.999])))
    return median_s * level * np.exp(0.05 * rng.standard_normal(shape))


def day_and_night(rng: Rng, shape: tuple[int, int], median_s: float) -> Array:
    """One pace by day, another one by night."""
    is_day = np.arange(shape[0]) % 24 < rng.integers(6, 18)
    level = np.where(is_day, rng.uniform(2, 8), 1.0)[:, np.newaxis]
    return median_s * level * np.exp(0.15 * rng.standard_normal(shape))


Shape = Callable[[Rng, tuple[int, int], float], Array]
ONE_PACE: tuple[Shape, ...] = (
    lognormal, shifted_gamma, skewed_to_fast, plateau, few_prompts, short_prompts, stragglers, wandering_load,
    day_and_night,
)  # fmt: skip


def two_paces(fast_s: float, slow_s: float, share: float) -> Shape:
    """A share of the steps fast, the others slow, each spread by 15 %."""

    def draw(rng: Rng, shape: tuple[int, int], _median_s: float) -> Array:
        level = np.where(rng.random(shape) < share, fast_s, slow_s)
        return level * np.exp(0.15 * rng.standard_normal(shape))

    draw.__name__ = f"{fast_s * 1e3:g}/{slow_s * 1e3:g} ms {share:.0%}"
    return draw


TWO_PACES = tuple(
    two_paces(*what)
    for what in (
        (0.012, 0.06, 0.8),
        (0.03, 0.2, 0.9),
        (0.032, 0.275, 0.5),
        (0.02, 0.15, 0.93),
        (0.03, 0.06, 0.7),
        (0.004, 0.009, 0.8),
    )
)


def server(rng: Rng, shape: Shape) -> Steps:
    """One server: 300 to 4,000 steps in each of its sub-windows."""
    size = (NUM_WINDOWS, int(np.exp(rng.uniform(np.log(300), np.log(4000)))))
    median_s = np.exp(rng.uniform(np.log(0.006), np.log(0.3)))
    return Steps(shape(rng, size, float(median_s)), batches(rng, size))


def histograms(steps: Steps, upper: Array) -> list[Histogram]:
    """What vLLM would have counted in each sub-window."""
    found = []
    for durations_s, batch in zip(steps.durations_s, steps.batch, strict=True):
        counts = np.bincount(np.searchsorted(upper, durations_s), weights=batch, minlength=len(upper))
        found.append(Histogram(upper, counts, float(durations_s @ batch)))
    return found


def dip_answer(steps: Steps) -> str:
    """Hartigan's dip test of one sub-window's steps."""
    import diptest  # noqa: PLC0415 - an oracle, not needed for the rest

    _, p_value = diptest.diptest(np.log(steps.durations_s[0]))
    return "two-modes" if p_value < 0.01 else "one-mode"


def judgements(shape: Shape, repeats: int) -> Iterator[tuple[str, str, float]]:
    """Judge, answer and seconds for every server of a shape."""
    for number in range(repeats):
        steps = server(np.random.default_rng([number, len(shape.__name__), *shape.__name__.encode()]), shape)
        num_steps = [float(steps.durations_s.shape[1])] * NUM_WINDOWS
        for name, upper in (("default", DEFAULT), ("fine", FINE)):
            windows = histograms(steps, upper)
            start = time.process_time()
            judged = judge_modes(windows, num_steps, number)
            seconds = time.process_time() - start
            yield name, "two-regimes" if judged.two_regimes else judged.verdict, seconds
            yield f"{name}, one window", judge_modes(windows[:1], num_steps[:1], number).verdict, 0.0
        if find_spec("diptest"):
            yield "dip", dip_answer(steps), 0.0


def table(title: str, shapes: tuple[Shape, ...], repeats: int) -> None:
    """Print the share of each answer, by shape and judge, and the slowest judgement."""
    print(f"\n{title}\n\n| shape | judge | servers | {' | '.join(ANSWERS)} | slowest, CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    total: dict[str, Counter[str]] = {}
    for shape in shapes:
        answers: dict[str, Counter[str]] = {}
        slowest: dict[str, float] = {}
        for judge, answer, seconds in judgements(shape, repeats):
            answers.setdefault(judge, Counter())[answer] += 1
            total.setdefault(judge, Counter())[answer] += 1
            slowest[judge] = max(seconds, slowest.get(judge, 0.0))
        for judge, counted in answers.items():
            print(_row(shape.__name__.replace("_", " "), judge, counted, f"{slowest[judge]:.2f}"), flush=True)
    for judge, counted in total.items():
        print(_row("all", judge, counted, ""))


def _row(name: str, judge: str, counted: Counter[str], last: str) -> str:
    number = counted.total()
    shares = " | ".join(f"{counted[answer] / number:.2%}" for answer in ANSWERS)
    return f"| {name} | {judge} | {number} | {shares} | {last} |"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description="false alarms and power of the judgement on inter-token latency")
    parser.add_argument("--servers", type=int, default=2000, help="with one pace, all shapes together")
    number = parser.parse_args().servers
    table("Servers with one pace", ONE_PACE, -(-number // len(ONE_PACE)))
    table("Servers with two paces", TWO_PACES, max(1, number // 10))


if __name__ == "__main__":
    main()
