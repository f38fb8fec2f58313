"""What one run says: the time of its windows of steps, and how its schedule compares with the simulator's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maitre.calibration.fit import WINDOW_STEPS
from maitre.recording import StepRecord
from maitre.records import Cell
from maitre.simulator.surface import ReplayedSurface


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """One run of one cell."""

    cell: Cell
    features: NDArray[np.float64]
    """Shape (windows, 7): what each coefficient of the step time is multiplied by. Without recorded steps, one window
    with the simulator's own sums."""
    seconds: NDArray[np.float64]
    """Shape (windows,)."""
    simulated: NDArray[np.float64]
    """Shape (7,): what the simulator would have needed for the same work. Where the schedule is the simulator's, it is
    the sum of `features`; where not (other preemptions, later arrivals), the two say how far the schedule is off."""
    is_complete: bool

    def log_excess(self, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """How much longer each window took than its steps should, as logarithms, shape (windows,)."""
        excess: NDArray[np.float64] = np.log(self.seconds) - np.log(self.features @ coefficients)
        return excess

    def log_schedule(self, coefficients: NDArray[np.float64]) -> float:
        """How much longer the steps that were run should take than those that the simulator runs, as a logarithm."""
        return float(np.log(self.features.sum(axis=0) @ coefficients) - np.log(self.simulated @ coefficients))

    def total_log_excess(self, coefficients: NDArray[np.float64]) -> float:
        """How much longer the run took than the simulator says, as a logarithm."""
        return float(np.log(self.seconds.sum()) - np.log(self.simulated @ coefficients))


def read_steps(surface: ReplayedSurface, cell: Cell, steps: StepRecord, *, is_complete: bool) -> Evidence:
    """What a run with recorded steps says.

    Args:
        surface: the simulator.
        cell: the dials of the run.
        steps: its steps from the first on.
        is_complete: the whole workload was served.
    """
    num_windows = max(steps.num_steps // WINDOW_STEPS, 1)
    starts = np.linspace(0, steps.num_steps, num_windows, endpoint=False).astype(int)
    features = np.add.reduceat(surface.features_of(cell, steps), starts)
    num_output_tokens = float(steps.columns["num_decodes"].sum())
    simulated = surface.features([cell])[0] if is_complete else surface.features_until(cell, num_output_tokens)
    return Evidence(cell, features, np.add.reduceat(steps.steps_s, starts), simulated, is_complete)


def read_duration(surface: ReplayedSurface, cell: Cell, duration_s: float) -> Evidence:
    """What a run of the whole workload says if only its time is known, in seconds."""
    simulated = surface.features([cell])
    return Evidence(cell, simulated, np.array([duration_s]), simulated[0], is_complete=True)


def foresee(surface: ReplayedSurface, cell: Cell, coefficients: NDArray[np.float64]) -> Evidence:
    """What a whole run is expected to show: the simulator's own windows and times."""
    features = surface.step_features(cell)
    starts = np.arange(0, len(features), WINDOW_STEPS)
    windows = np.add.reduceat(features, starts)
    return Evidence(cell, windows, windows @ coefficients, features.sum(axis=0), is_complete=True)
