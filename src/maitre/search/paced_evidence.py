"""What a run says whose requests came over time: how long its own steps took, whatever the schedule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maitre.calibration.fit import WINDOW_STEPS
from maitre.recording import StepRecord
from maitre.records import Cell
from maitre.search.evidence import Evidence
from maitre.simulator.surface import ReplayedSurface


def read_paced_steps(surface: ReplayedSurface, cell: Cell, steps: StepRecord) -> Evidence:
    """The windows of a run's steps without the time in which the server had nothing to do.

    Which steps there are depends on when requests came and on how long each step took; a rate is found with the step
    time alone. So the work is that of the run itself, and nothing of the schedule counts as the cell's own.

    Args:
        surface: the simulator; knows what each coefficient of the step time is multiplied by.
        cell: the dials of the run.
        steps: of the whole run or a part of it, with `schedule_start_s`.
    """
    num_windows = max(steps.num_steps // WINDOW_STEPS, 1)
    starts = np.linspace(0, steps.num_steps, num_windows, endpoint=False).astype(int)
    features = np.add.reduceat(surface.features_of(cell, steps), starts)
    seconds = np.add.reduceat(busy_steps_s(steps), starts)
    return Evidence(cell, features, seconds, features.sum(axis=0), is_complete=True)


def busy_steps_s(steps: StepRecord) -> NDArray[np.float64]:
    """How long the server worked on each step, shape (steps,).

    From the output before, or from its own schedule where that is later because nobody was there.
    """
    ends = steps.step_end_s
    starts = np.maximum(np.concatenate([[0.0], ends[:-1]]), steps.columns["schedule_start_s"])
    busy: NDArray[np.float64] = np.maximum(ends - starts, 1e-9)
    return busy
