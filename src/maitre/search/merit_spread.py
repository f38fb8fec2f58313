"""How far the merits of cells may be off, where each merit costs a replay.

Two things are not known. One is the step time. A run over time has to be replayed for every step time, so few can be
tried: the logarithm of a cell's merit is taken as a sum of curves, one for each independent direction in which the
step time may be off and one for what is the cell's own. Each curve is two straight lines, from the best guess to one
standard deviation on either side of it, since a target may be met with steps as they are and be out of reach with
longer ones.

    log merit_c = log merit_c(θ̂) + Σ_k curve_ck(z_k) + curve_c0(δ_c) + sample_c,    z_k ~ N(0, 1)

The other is the traffic: the requests at hand are a sample of it. `sample` is what a few further samples give, as
Student's t with their covariance.

Only cells that may win are tried; another takes what the nearest of these has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import Calibration
from maitre.calibration.doubt import draw_cell_offsets
from maitre.records import Cell

Array = NDArray[np.float64]

NUM_DIRECTIONS = 2
"""Directions of the step time that are tried: mostly how long all steps are, and how much longer those with prompt
tokens are than the others."""
LEAST_SCALE = 0.03
"""Least change of all steps with which the curve of a cell's own error is found: the search for a rate is no finer."""
OUT_OF_REACH = log(0.01)
"""Logarithm of the merit of a cell that has none, over what it has by the best guess."""
CONTENDS, MAX_CONTENDERS = 0.9, 3
"""Cells from this share of the best merit on may win; no more of them are tried."""
NUM_SAMPLES = 4
"""Further samples of the traffic."""


@dataclass(frozen=True, slots=True)
class MeritSpread:
    """Changes of one cell's log merit."""

    below: Array
    """Per standard deviation, shape (directions + 1,); the last is for all steps of the cell alone, per `own_scale`."""
    above: Array
    samples: Array
    """Shape (samples,): in each of the further samples of the traffic."""

    def along_curves(self, deviations: Array) -> Array:
        """Changes for a changed step time, shape (draws,), from deviations of shape (draws, directions + 1)."""
        slopes = np.where(deviations < 0, self.below, self.above)
        change: Array = (deviations * slopes).sum(axis=1)
        return change


def contenders(merits: Mapping[Cell, float], baseline: Cell) -> list[Cell]:
    """The cells that may win, the best first, and the baseline; those without any merit are none."""
    best = max(merits.values())
    close = sorted((c for c, merit in merits.items() if merit >= CONTENDS * best), key=lambda c: -merits[c])
    return [cell for cell in dict.fromkeys([*close[:MAX_CONTENDERS], baseline]) if merits[cell] > 0]


def own_scale(calibration: Calibration) -> float:
    """The relative change of all steps of a cell that counts as one deviation of its own."""
    return max(calibration.cell_sd, LEAST_SCALE)


def find_spread(
    merit: float,
    merit_when: Callable[[Array], float],
    merit_of_sample: Callable[[int], float],
    directions: Array,
    scale: float,
    num_samples: int = NUM_SAMPLES,
) -> MeritSpread:
    """Try a cell with other steps and other requests.

    Args:
        merit: by the best guess, above 0.
        merit_when: with log θ changed by so much, shape (7,); 0 if the cell has none then.
        merit_of_sample: with the further sample of this number, from 0 on.
        directions: one standard deviation of each, as changes of log θ, shape (directions, 7).
        scale: `own_scale`.
        num_samples: how many further samples are tried.
    """

    def change(other: float) -> float:
        return log(other / merit) if other > 0 else OUT_OF_REACH

    steps = [*directions, np.full(7, scale)]
    return MeritSpread(
        below=np.array([-change(merit_when(-step)) for step in steps]),
        above=np.array([change(merit_when(step)) for step in steps]),
        samples=np.array([change(merit_of_sample(number)) for number in range(num_samples)]),
    )


def draw_changes(
    cells: Sequence[Cell],
    spread_of: Callable[[Cell], MeritSpread],
    calibration: Calibration,
    num_draws: int,
    generator: np.random.Generator,
) -> Array:
    """Changes of the cells' log merits that are as likely as each other, shape (num_draws, cells).

    Args:
        cells: all of the surface.
        spread_of: what was found for each, or for its nearest neighbour.
        calibration: says how far each cell may be off on its own.
        num_draws: how many.
        generator: of the draws.
    """
    shared = generator.standard_normal((num_draws, len(spread_of(cells[0]).below) - 1))
    own = draw_cell_offsets(cells, calibration.cell_sd, num_draws, generator) / own_scale(calibration)
    samples = np.stack([spread_of(cell).samples for cell in cells])
    return along_curves(cells, spread_of, shared, own) + draw_samples(samples, num_draws, generator)


def along_curves(cells: Sequence[Cell], spread_of: Callable[[Cell], MeritSpread], shared: Array, own: Array) -> Array:
    """Changes of the cells' log merits for changed step times, shape (draws, cells).

    Args:
        cells: all of the surface.
        spread_of: what was found for each, or for its nearest neighbour.
        shared: standard deviations along each direction, shape (draws, directions).
        own: those of each cell's own, in its scale, shape (draws, cells).
    """
    return np.column_stack(
        [spread_of(cell).along_curves(np.column_stack([shared, own[:, i]])) for i, cell in enumerate(cells)]
    )


def draw_samples(samples: Array, num_draws: int, generator: np.random.Generator) -> Array:
    """Changes of the cells' log merits in other samples of the traffic, shape (num_draws, cells).

    Student's t with the covariance of the few samples that were tried.

    Args:
        samples: changes in each of them, shape (cells, samples), at least two.
        num_draws: how many.
        generator: of the draws.
    """
    freedom = samples.shape[1] - 1
    mixture = generator.standard_normal((num_draws, samples.shape[1])) / np.sqrt(freedom)
    mixture /= np.sqrt(generator.chisquare(freedom, (num_draws, 1)) / freedom)
    changes: Array = mixture @ (samples - samples.mean(axis=1, keepdims=True)).T
    return changes
