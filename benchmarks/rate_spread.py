"""How far highest rates may be off: the sum of curves that a study uses, against a search for every draw.

    python benchmarks/rate_spread.py

Two cells, 400 requests, one set of targets; the step time measured on an H200, and one that was scaled to an A100.
"""

from __future__ import annotations

import numpy as np

from maitre.calibration import Calibration, calibration_for
from maitre.calibration.doubt import draw_cell_offsets, leading_directions
from maitre.gpus import find_gpu
from maitre.models import load_model
from maitre.records import Cell, ServerConfig
from maitre.search.merit_spread import NUM_DIRECTIONS, draw_changes, find_spread, own_scale
from maitre.setup import Setup
from maitre.slo import LatencyTarget, parse_latency_targets
from maitre.trial.paced import PacedSurface
from maitre.trial.rate_surface import RateSurface
from maitre.workload import load_workload

CELLS = [Cell(max_num_seqs=128, max_num_batched_tokens=512), Cell(max_num_seqs=256, max_num_batched_tokens=2048)]
NUM_DRAWS = 60


def compare(gpu_name: str, targets: tuple[LatencyTarget, ...]) -> None:
    """Print the spread of both rates and of their ratio, searched and approximated."""
    model, gpu = load_model("qwen2.5-14b"), find_gpu(gpu_name)
    server = ServerConfig(model=model.name, max_model_len=8192, **CELLS[0].model_dump())
    setup = Setup(server, model, gpu)
    calibration = calibration_for(model, gpu, server, setup.kv_budget(CELLS[0]).kv_bytes_per_token or 0)
    workload = load_workload("lognormal:500:0.8:250:0.8", num_requests=400)
    paced = PacedSurface(workload, server, calibration.step_time, lambda c: setup.kv_budget(c).num_gpu_blocks)
    surface = RateSurface(paced, targets)
    searched = _searched(surface, calibration)
    curves = _curves(surface, calibration)
    for name, draws in (("searched", searched), ("curves", curves)):
        ratio = draws[:, 1] - draws[:, 0]
        quantiles = ", ".join(f"{q:+.3f}" for q in np.percentile(ratio, [2.5, 50, 97.5]))
        spread = " and ".join(f"{sd:.3f}" for sd in draws.std(axis=0))
        print(f"{gpu_name}, {name:8}: sd of log rates {spread}, of their ratio {ratio.std():.3f} ({quantiles})")


def _searched(surface: RateSurface, calibration: Calibration) -> np.ndarray:
    generator = np.random.default_rng(1)
    theta = calibration.draw_coefficients(NUM_DRAWS, generator)
    own = np.exp(draw_cell_offsets(CELLS, calibration.cell_sd, NUM_DRAWS, generator))
    central = [surface.find(cell, calibration.step_time.coefficients).crossing_rps for cell in CELLS]
    rates = [
        [surface.find(cell, theta[i] * own[i, c], central[c]).crossing_rps for c, cell in enumerate(CELLS)]
        for i in range(NUM_DRAWS)
    ]
    return np.log(np.maximum(np.array(rates), 0.01 * np.array(central)) / central)


def _curves(surface: RateSurface, calibration: Calibration) -> np.ndarray:
    theta = calibration.step_time.coefficients
    central = {cell: surface.find(cell, theta).crossing_rps for cell in CELLS}
    shares = np.stack([surface.paced.time_shares(cell, theta, central[cell]) for cell in CELLS])
    directions = leading_directions(np.array(calibration.covariance), shares, NUM_DIRECTIONS)

    def rate(cell: Cell, step: np.ndarray) -> float:
        return surface.find(cell, theta * np.exp(step), central[cell]).crossing_rps

    spreads = {
        cell: find_spread(
            central[cell],
            lambda step, cell=cell: rate(cell, step),
            lambda _, cell=cell: central[cell],
            directions,
            own_scale(calibration),
        )
        for cell in CELLS
    }
    return draw_changes(CELLS, spreads.__getitem__, calibration, 4000, np.random.default_rng(0))


if __name__ == "__main__":
    for gpu, limits in (("H200", ("ttft_p95=500ms", "itl_p99=50ms")), ("A100-80GB", ("ttft_p95=1s", "itl_p99=120ms"))):
        compare(gpu, parse_latency_targets(limits))
