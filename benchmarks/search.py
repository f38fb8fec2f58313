"""How few runs a search needs to find a good cell: ours against the grid, random search and Optuna.

    python benchmarks/search.py                          every scenario, 100 repetitions of each of its surfaces
    python benchmarks/search.py --quick                  10 repetitions
    python benchmarks/search.py --strategies maitre,gp   with Optuna's Gaussian process, which needs torch
    python benchmarks/search.py --only 'KV pool'         only scenarios whose name contains this
    python benchmarks/search.py --by surface             a table for each surface instead of each group

Every search measures the present setting first: a gain is counted from there. All see the same noise: the r-th run of a
cell in repetition n is the same for each. A search that has not stopped after as many runs as there are cells, the
cost of the grid, ends there. Results repeat for a seed, but for the CPU times.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import numpy as np
from contenders import CONTENDERS, WITHOUT_STOP
from scenarios import Scenario, all_scenarios
from search_table import Episode, Results, print_tables
from surfaces import Noise, Surface, seed_of

from maitre.recording import StepRecord
from maitre.search.strategy import Strategy

REPETITIONS, QUICK_REPETITIONS = 100, 10


def play(strategy: Strategy, surface: Surface, noise: Noise, seed: Sequence[int], *, without_stop: bool) -> Episode:
    """Let a fresh strategy search a surface.

    Args:
        strategy: asks.
        surface: answers.
        noise: of the runs.
        seed: of the noise.
        without_stop: ask what it would recommend after each run, not only after the last.
    """
    num_runs: Counter[int] = Counter()
    seconds, regrets, decisions_s, watching_s = [0.0], [], [], []

    def watch(steps: StepRecord) -> bool:
        start = time.process_time()
        is_enough = strategy.watch(steps)
        watching_s.append(time.process_time() - start)
        return is_enough

    ask = strategy.ask()
    while ask is not None and len(regrets) < len(surface.cells):
        position = surface.cells.index(ask.cell)
        told = surface.run(ask.cell, noise, watch, np.random.default_rng([*seed, position, num_runs[position]]))
        num_runs[position] += 1
        seconds.append(seconds[-1] + told.measured_s)
        start = time.process_time()
        strategy.tell(told)
        ask = strategy.ask()
        decisions_s.append(time.process_time() - start)
        is_last = ask is None or len(regrets) + 1 == len(surface.cells)
        regrets.append(surface.regret(strategy.recommend()) if without_stop or is_last else np.nan)
    return Episode(
        seconds=np.array(seconds[1:]),
        regrets=np.array(regrets),
        num_cells=len(num_runs),
        grid_s=sum(surface.duration_s(cell) for cell in surface.cells if cell not in surface.crashing),
        has_stopped=ask is None,
        decisions_s=np.array(decisions_s),
        longest_watch_s=max(watching_s, default=0.0),
    )


def play_scenario(scenario: Scenario, name: str, repetitions: range, seed: int) -> list[Episode]:
    """All repetitions of one strategy on one scenario."""
    episodes = []
    for repetition in repetitions:
        parts = seed_of(seed, str(scenario), repetition)
        surface = scenario.draw(np.random.default_rng(parts))
        strategy = CONTENDERS[name](surface.cells, surface.baseline, surface.context, repetition)
        episodes.append(play(strategy, surface, scenario.noise, parts, without_stop=name in WITHOUT_STOP))
    return episodes


def play_all(scenarios: Sequence[Scenario], names: Sequence[str], num_repetitions: int, seed: int) -> Results:
    """Every strategy on every scenario, on all cores."""
    results: Results = {}
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        futures = {
            pool.submit(play_scenario, scenario, name, range(num_repetitions), seed): (str(scenario), name)
            for scenario in scenarios
            for name in names
        }
        for number, future in enumerate(as_completed(futures), 1):
            results[futures[future]] = future.result()
            if sys.stderr.isatty():
                print(f"\r{number} of {len(futures)}", end="", file=sys.stderr, flush=True)
    return results


def main() -> None:
    """Parse the command line, play, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", default="maitre,grid,random,tpe")
    parser.add_argument("--only", default="", help="part of a scenario's name")
    parser.add_argument("--by", choices=("group", "surface"), default="group")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_REPETITIONS} repetitions")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    scenarios = [scenario for scenario in all_scenarios() if options.only in str(scenario)]
    names = options.strategies.split(",")
    num_repetitions = QUICK_REPETITIONS if options.quick else options.repetitions
    start = time.perf_counter()
    results = play_all(scenarios, names, num_repetitions, options.seed)
    print_tables(scenarios, names, results, by=options.by)
    print(f"\n{num_repetitions} repetitions of {len(scenarios)} scenarios, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")  # the processes that are spawned share the cores
    main()
