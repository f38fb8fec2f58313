"""The searches that benchmarks/search.py compares, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from surfaces import Context

from maitre.records import Cell
from maitre.search.challenge import Challenge
from maitre.search.fixed_order import every_cell, random_cells
from maitre.search.strategy import Strategy
from maitre.simulator.surface import ReplayedSurface

EPSILON, DELTA = 0.02, 0.05

Contender = Callable[[Sequence[Cell], Cell, Context, int], Strategy]
"""Makes a fresh strategy from the grid, the present setting, what may be known, and a seed."""

_surfaces: dict[tuple[str, str, int], ReplayedSurface] = {}


def maitre(cells: Sequence[Cell], baseline: Cell, context: Context, seed: int) -> Strategy:
    """Ours. The schedules are kept for the next repetition: they depend neither on noise nor on coefficients."""
    server, blocks = context.server, context.num_gpu_blocks
    key = server.model, context.workload.name, blocks
    if key not in _surfaces:
        step_time = context.prior.step_time
        _surfaces[key] = ReplayedSurface(context.workload, server, step_time, lambda _: blocks, started_at=server.cell)
    return Challenge(cells, baseline, _surfaces[key], context.prior, epsilon=EPSILON, delta=DELTA, seed=seed)


def grid(cells: Sequence[Cell], baseline: Cell, _: Context, __: int) -> Strategy:
    """Every cell once."""
    return every_cell(cells, baseline)


def random(cells: Sequence[Cell], baseline: Cell, _: Context, seed: int) -> Strategy:
    """Every cell once in random order."""
    return random_cells(cells, baseline, len(cells), seed)


def tpe(cells: Sequence[Cell], baseline: Cell, _: Context, seed: int) -> Strategy:
    """Optuna's tree-structured Parzen estimator."""
    import optuna_strategies  # noqa: PLC0415 - optuna is not needed for the others

    return optuna_strategies.tpe(cells, baseline, seed)


def gp(cells: Sequence[Cell], baseline: Cell, _: Context, seed: int) -> Strategy:
    """Optuna's Gaussian process."""
    import optuna_strategies  # noqa: PLC0415 - torch is not needed for the others

    return optuna_strategies.gaussian_process(cells, baseline, seed)


OURS, GRID = "maitre", "grid"
CONTENDERS: dict[str, Contender] = {OURS: maitre, GRID: grid, "random": random, "tpe": tpe, "gp": gp}

WITHOUT_STOP = ("random", "tpe", "gp")
"""They are looked at after every run, since nothing tells them when to stop."""
