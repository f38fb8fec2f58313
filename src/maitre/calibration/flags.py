"""What flags other than the two dials do to the step time: the roofline with them over the roofline without."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from maitre.calibration.prior import roofline_prior
from maitre.gpus import Gpu
from maitre.kv_budget import kv_bytes_per_token
from maitre.models import Model
from maitre.records import Cell, ServerConfig

CHANGE_STEPS = ("kv_cache_dtype", "tensor_parallel_size")
"""Flags that change how long a step takes, not only which steps there are."""

FLAG_SD = 0.1
"""How far the roofline is off about such a flag: which kernels run then is not in it. Assumed, not measured."""


def flag_covariance(cells: Sequence[Cell]) -> NDArray[np.float64]:
    """What may be off about the flags, the same for all cells that share them, shape (cells, cells), of log-times."""
    settings = [tuple(flag for flag in cell.flags if flag[0] in CHANGE_STEPS) for cell in cells]
    shared = [[one == other != () for other in settings] for one in settings]
    return FLAG_SD**2 * np.array(shared, dtype=np.float64)


def step_time_factors(model: Model, gpu: Gpu, server: ServerConfig) -> Callable[[Cell], NDArray[np.float64]]:
    """By what each coefficient of the step time is multiplied at a cell with other flags, shape (7,).

    An fp8 KV cache halves the bytes of a context token, tensor parallelism shares weights, KV and arithmetic and adds
    all-reduces; a larger share of the memory or a threshold for long prompts changes schedules, not steps.

    Args:
        model: its geometry.
        gpu: its peak rates.
        server: as it is without the flags.
    """

    def coefficients(config: ServerConfig) -> NDArray[np.float64]:
        per_token = kv_bytes_per_token(model, config.kv_cache_dtype, config.tensor_parallel_size, config.dtype)
        return roofline_prior(model, gpu, config, per_token).step_time.coefficients

    def factors(cell: Cell) -> NDArray[np.float64]:
        return coefficients(server.at(cell)) / coefficients(server) if cell.flags else np.ones(7)

    return factors
