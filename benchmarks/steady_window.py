"""How far throughput figures of a short burst are from those of a server that is busy for hours.

    python benchmarks/steady_window.py

For two kinds of traffic on Qwen2.5-14B and an H200, simulated: bursts of 1,000 and 4,000 requests, 20 draws each,
against the middle of two bursts of 20,000. A row a cell and size: the window's length in mean lifetimes of a request;
the mean error of the whole run, of the window from the plateau on, and of the window one lifetime later, which is
maitre's rule; and how many of the 95 % intervals hold the long-run figure. Windows that the rule refuses as too short
are shown too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import shipped_calibrations
from maitre.records import Cell
from maitre.simulator import SchedulerRules, replay_at_once
from maitre.trial import Run, replay_run, steady
from maitre.vllm.defaults import capture_sizes
from maitre.workload import load_workload

VERSION = "0.26.0"
TRAFFIC = {"chat": "lognormal:500:0.8:250:0.8", "long answers": "lognormal:150:0.8:800:0.6"}
CELLS = ((64, 33_000), (128, 33_000), (256, 33_000), (512, 33_000), (256, 4_521))
"""Slots and KV blocks; the last one preempts."""


def burst(spec: str, num_requests: int, seed: int, num_seqs: int, num_gpu_blocks: int) -> Run:
    """Simulate one burst."""
    cell = Cell(max_num_seqs=num_seqs, max_num_batched_tokens=8192)
    rules = SchedulerRules.of_version(VERSION, cell, num_gpu_blocks, enable_prefix_caching=True)
    workload = load_workload(spec, num_requests=num_requests, seed=seed)
    replay = replay_at_once(workload, rules)
    graphs = {"graph_sizes": capture_sizes(VERSION, cell)}
    step_time = shipped_calibrations()[0].step_time.model_copy(update=graphs)
    return replay_run(replay, np.cumsum(replay.steps_s(step_time)), workload, rules)


def throughput(run: Run, begin_s: float, end_s: float) -> float:
    """Useful tokens/s between two times."""
    num_tokens = np.interp([begin_s, end_s], run.step_end_s, np.cumsum(run.num_useful_tokens))
    return float(num_tokens[1] - num_tokens[0]) / (end_s - begin_s)


def long_run(spec: str, num_seqs: int, num_gpu_blocks: int) -> float:
    """Useful tokens/s in the middle of long bursts."""
    runs = [burst(spec, 20_000, seed, num_seqs, num_gpu_blocks) for seed in (1001, 1002)]
    return float(np.mean([throughput(run, 0.1 * run.duration_s, 0.9 * run.duration_s) for run in runs]))


def errors(runs: list[Run], truth: float) -> Iterator[NDArray[np.float64]]:
    """Of each run with a window: lifetimes, three relative errors, and whether the interval holds the truth."""
    for run in runs:
        window = steady.steady_window(run)
        if window is None:
            continue
        lifetime_s = float(np.mean(run.last_token_s - run.first_scheduled_s))
        figures = (
            run.num_useful_tokens.sum() / run.duration_s,
            throughput(run, window.begin_s - lifetime_s, window.end_s),
            window.total_tokens_per_s,
        )
        low, high = window.total_tokens_per_s_low, window.total_tokens_per_s_high
        holds = np.nan if low is None or high is None else low <= truth <= high
        yield np.array([(window.end_s - window.begin_s) / lifetime_s, *(f / truth - 1 for f in figures), holds])


def main() -> None:
    """Print the table."""
    steady.MIN_LIFETIMES = 0
    print("traffic       slots  blocks  requests  lifetimes  whole run  from plateau  a lifetime later  interval holds")
    for name, spec in TRAFFIC.items():
        for num_seqs, num_gpu_blocks in CELLS:
            truth = long_run(spec, num_seqs, num_gpu_blocks)
            for num_requests in (1000, 4000):
                runs = [burst(spec, num_requests, seed, num_seqs, num_gpu_blocks) for seed in range(20)]
                table = np.array(list(errors(runs, truth)))
                lifetimes, whole, plateau, later = table[:, :4].mean(axis=0)
                held = table[~np.isnan(table[:, 4]), 4]
                print(
                    f"{name:<12}  {num_seqs:>5}  {num_gpu_blocks:>6}  {num_requests:>8}  {lifetimes:>9.1f}  "
                    f"{whole:>+9.1%}  {plateau:>+12.1%}  {later:>+16.1%}  {int(held.sum()):>9} of {len(held)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
