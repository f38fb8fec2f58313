"""What benchmarks/search.py tries the searches on: recorded and simulated surfaces, and what can go wrong.

A scenario is a surface and the changes that each repetition makes to it: what is true, or what is believed, is drawn
anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from surfaces import GRIDS_14B, Columns, Noise, Surface, recorded_surface, simulated_surface, window_jitter

from maitre.calibration import Calibration
from maitre.calibration.doubt import LENGTH_OCTAVES
from maitre.calibration.fit import CELL_SD
from maitre.records import Cell

Change = Callable[[Surface, np.random.Generator], Surface]

RECORDED = (*GRIDS_14B, "qwen2.5-7b-lognormal", "qwen2.5-1.5b-lognormal")
SIMULATED = {
    "qwen2.5-1.5b, L4, 150/300": ("qwen2.5-1.5b", "l4", "lognormal:150:0.8:300:0.9", 500),
    "phi-4, MI300X, 2500/400": ("phi-4", "mi300x", "lognormal:2500:0.5:400:0.5", 300),
    "llama-3.1-8b, H100, 2500/64": ("llama-3.1-8b", "h100", "lognormal:2500:0.4:64:0.5", 300),
    "mistral-7b, L40S, 512/512": ("mistral-7b-v0.3", "l40s", "fixed:512:512", 384),
}
"""Model, GPU, workload, requests. In the last one the KV pool overflows from 256 slots on."""

FIXED, FIXED_TIGHT, LOGNORMAL_TIGHT = GRIDS_14B
TIGHT = (FIXED_TIGHT, LOGNORMAL_TIGHT, "mistral-7b, L40S, 512/512")
"""Surfaces whose KV pool overflows."""
MIXED = (FIXED, "phi-4, MI300X, 2500/400", "mistral-7b, L40S, 512/512")
"""Surfaces of 25 cells: recorded, simulated, and simulated with a KV pool that overflows."""
USUAL_SD = 0.02
"""Noise of a run where the noise is not what is tried."""


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """One row of the table by surface."""

    group: str
    surface_name: str
    run_sd: float
    changes: tuple[Change, ...] = ()
    slow_share: float = 0.0
    cell_sd: float = CELL_SD
    """How far a simulated truth is off at a cell, relative, beside what the coefficients explain."""

    def __str__(self) -> str:
        return f"{self.group} | {self.surface_name}"

    @property
    def noise(self) -> Noise:
        """How its runs differ."""
        return Noise(self.run_sd, window_jitter(), self.slow_share)

    def draw(self, generator: np.random.Generator) -> Surface:
        """The surface of one repetition."""
        if self.surface_name in SIMULATED:
            surface = redraw_truth(simulated_surface(*SIMULATED[self.surface_name]), generator, self.cell_sd)
        else:
            surface = recorded_surface(self.surface_name)
        for change in self.changes:
            surface = change(surface, generator)
        return surface


def all_scenarios() -> Iterator[Scenario]:
    """Every scenario of the table, in its order."""
    for kind, names in (("recorded", RECORDED), ("simulated", tuple(SIMULATED))):
        for run_sd in (0.01, 0.02, 0.03):
            yield from (Scenario(f"{kind}, runs ±{run_sd:.0%}", name, run_sd) for name in names)
    troubles: list[tuple[str, tuple[str, ...], Change]] = [
        ("step time believed wrong by 30 %", MIXED, distort_prior),
        ("KV pool believed 20 % larger", TIGHT, partial(believe_blocks, factor=1.2)),
        ("KV pool believed 20 % smaller", TIGHT, partial(believe_blocks, factor=0.8)),
        ("fastest cell crashes", MIXED, crash_fastest),
        ("fastest cell slow, unexplained", MIXED, slow_fastest),
        ("its neighbour slow, unexplained", MIXED, slow_neighbour),
        ("flat: all within 1 %", (FIXED, "phi-4, MI300X, 2500/400"), flatten),
    ]
    for group, names, change in troubles:
        yield from (Scenario(group, name, USUAL_SD, (change,)) for name in names)
    for name in SIMULATED:
        yield Scenario("cells off by 4 % that nothing explains", name, USUAL_SD, cell_sd=0.04)
    for name in MIXED:
        yield Scenario("1 run in 20 is 10 % slow, others ±1%", name, 0.01, slow_share=0.05)


# what is true


def redraw_truth(surface: Surface, generator: np.random.Generator, cell_sd: float) -> Surface:
    """Coefficients that are as likely as the prior says, and for each cell something that these do not explain.

    Args:
        surface: of the simulator.
        generator: of the truth.
        cell_sd: relative size of what the coefficients do not explain; alike in neighbouring cells.
    """
    prior = surface.context.prior
    step_time = prior.step_time.with_coefficients(prior.draw_coefficients(1, generator)[0])
    dials = np.log2([(cell.max_num_seqs, cell.max_num_batched_tokens) for cell in surface.cells])
    distance = np.sum((dials[:, None] - dials) ** 2, axis=-1)
    alike = cell_sd**2 * np.exp(-distance / (2 * LENGTH_OCTAVES**2))
    rest = np.exp(generator.multivariate_normal(np.zeros(len(dials)), alike, method="eigh"))
    steps_s = {
        cell: factor * step_time.steps_s(dict(surface.columns[cell]))
        for cell, factor in zip(surface.cells, rest, strict=True)
    }
    return replace(surface, steps_s=steps_s)


def crash_fastest(surface: Surface, _: np.random.Generator) -> Surface:
    """The server dies at the fastest cell, or at the second if the fastest is the present setting."""
    others = [cell for cell in surface.cells if cell != surface.baseline]
    return replace(surface, crashing=frozenset([min(others, key=surface.duration_s)]))


def slow_fastest(surface: Surface, generator: np.random.Generator) -> Surface:
    """What was the fastest cell is 15 to 25 % slower than the simulator can explain."""
    return _slowed(surface, min(surface.cells, key=surface.duration_s), generator)


def slow_neighbour(surface: Surface, generator: np.random.Generator) -> Surface:
    """A cell beside the fastest one is 15 to 25 % slower than the simulator can explain."""
    fastest = min(surface.cells, key=surface.duration_s)
    others = [cell for cell in surface.cells if cell != fastest]
    nearest = min(_octaves(fastest, cell) for cell in others)
    beside = [cell for cell in others if _octaves(fastest, cell) == nearest]
    return _slowed(surface, beside[generator.integers(len(beside))], generator)


def flatten(surface: Surface, generator: np.random.Generator) -> Surface:
    """Only the cells whose slots do not bind, and all of them within 1 % of each other."""
    most = sorted({cell.max_num_seqs for cell in surface.cells})[-2:]
    kept = [cell for cell in surface.cells if cell.max_num_seqs in most]
    level = float(np.mean([surface.duration_s(cell) for cell in kept]))
    steps_s = {
        cell: surface.steps_s[cell] * level * generator.uniform(0.995, 1.005) / surface.duration_s(cell)
        for cell in kept
    }
    columns: dict[Cell, Columns] = {cell: surface.columns[cell] for cell in kept}
    return replace(surface, steps_s=steps_s, columns=columns)


# what is believed


def distort_prior(surface: Surface, generator: np.random.Generator) -> Surface:
    """Each coefficient of the step time is believed wrong by 30 % (lognormal), with the spread of one that is not."""
    prior: Calibration = surface.context.prior
    wrong = prior.step_time.coefficients * np.exp(generator.normal(0.0, 0.3, 7))
    prior = prior.model_copy(update={"step_time": prior.step_time.with_coefficients(wrong)})
    return replace(surface, context=replace(surface.context, prior=prior))


def believe_blocks(surface: Surface, _: np.random.Generator, factor: float) -> Surface:
    """The KV pool is believed larger or smaller than it is."""
    believed = round(surface.context.num_gpu_blocks * factor)
    return replace(surface, context=replace(surface.context, num_gpu_blocks=believed))


def _slowed(surface: Surface, cell: Cell, generator: np.random.Generator) -> Surface:
    slower = surface.steps_s[cell] * generator.uniform(1.15, 1.25)
    return replace(surface, steps_s={**surface.steps_s, cell: slower})


def _octaves(one: Cell, other: Cell) -> float:
    seqs = np.log2(one.max_num_seqs / other.max_num_seqs)
    return round(float(np.hypot(seqs, np.log2(one.max_num_batched_tokens / other.max_num_batched_tokens))), 6)
