"""A step time together with how far to trust it."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from maitre.records import Record
from maitre.simulator.step_time import StepTime


class Calibration(Record):
    """A step time, its uncertainty, and where it comes from."""

    kind: Literal["measured", "fitted", "scaled", "unknown"]
    """`measured`: shipped, from recordings of this model on this GPU; `fitted`: from the recording at hand; `scaled`:
    the roofline of this model and GPU, times the efficiency that was measured elsewhere; `unknown`: hardly anything."""
    model: str
    gpu: str
    source: str
    step_time: StepTime
    covariance: tuple[tuple[float, ...], ...]
    """7 × 7, of the logarithms of the coefficients, in the order of `COEFFICIENTS`."""
    cell_sd: float = Field(ge=0)
    """Relative standard deviation of a cell's time that the coefficients do not explain."""
    time_sd: float = Field(ge=0)
    """Relative standard deviation of a cell's time, all in all."""

    @property
    def relative_sd(self) -> NDArray[np.float64]:
        """Relative standard deviation of each coefficient, shape (7,)."""
        return np.sqrt(np.diag(np.array(self.covariance)))

    def draw_coefficients(self, num_draws: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Coefficients that are as likely as these, shape (num_draws, 7), all non-negative."""
        logs = generator.multivariate_normal(np.zeros(7), np.array(self.covariance), num_draws, method="eigh")
        draws: NDArray[np.float64] = self.step_time.coefficients * np.exp(logs)
        return draws

    @property
    def summary(self) -> str:
        """One sentence for the report."""
        spread = f"±{100 * 1.96 * self.time_sd:.0f} % on a cell's time"
        match self.kind:
            case "measured":
                return f"measured on {self.gpu} with {self.model} ({spread} at 95 %): {self.source}"
            case "fitted":
                return f"fitted to {self.source} ({spread} at 95 %)"
            case "scaled":
                return f"not measured on {self.gpu} with {self.model}: {self.source} ({spread} at 95 %)"
            case "unknown":
                return f"not known on {self.gpu} with {self.model} before the runs"
