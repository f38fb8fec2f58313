"""Fit the step time to recorded steps.

Single steps cannot be fitted: with async scheduling the time of one leaks into its neighbours. Sums over windows of
steps are right. The fit is the most likely one under relative noise on the windows and a wide prior on the coefficients
(the roofline of the model and GPU), all of them non-negative: a coefficient that the runs say nothing about (Q, without
long prompts) keeps its prior instead of becoming 0.

    minimise  Σ_w ((X_w θ − t_w) / (ε t_w))²  +  Σ_i ((θ_i − θ0_i) / (s_i θ0_i))²    subject to θ ≥ 0

with t_w the seconds of window w, X_w its summed features, ε the noise of a window and s_i the prior's relative spread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maitre.calibration.calibration import Calibration
from maitre.recording import StepRecord
from maitre.simulator.step_time import StepTime, step_features

WINDOW_STEPS = 32
"""Steps in a window. 16, 32 and 64 give the same errors on the H200 recordings; 8 is too short there."""

WINDOW_NOISE = 0.02
"""Relative noise of a window's time; the result hardly depends on it between 0.01 and 0.05."""

PRIOR_SD = np.array([0.3, 1.0, 0.3, 1.0, 0.3, 0.5, 1.0])
"""Relative spread of the roofline prior, in the order of `COEFFICIENTS`: what the bytes and FLOPs decide is known
better than launch and per-sequence costs."""

CELL_SD = 0.015
"""Relative spread of a whole cell around a fit on two others, where windows fit as well as `WINDOW_NOISE` says: about
the root mean square error over the 14B recordings (`benchmarks/step_time.py`). Windows that fit worse widen it."""


def fit_step_time(runs: Sequence[StepRecord], prior: Calibration, source: str) -> Calibration:
    """The step time that the recorded runs speak for.

    Args:
        runs: at least one; two that differ in both dials are needed to tell the coefficients apart.
        prior: where the fit starts from; its `graph_sizes` and knee are kept.
        source: what was recorded, in words.
    """
    start = prior.step_time
    features, seconds = window_sums(runs, start)
    scale = np.where(start.coefficients > 0, start.coefficients, 1e-9)
    rows = features * scale / (WINDOW_NOISE * seconds)[:, None]
    target = np.full(len(seconds), 1 / WINDOW_NOISE)
    theta = _solve(np.vstack([rows, np.diag(1 / PRIOR_SD)]), np.concatenate([target, 1 / PRIOR_SD]))
    misfit = max(float(np.mean((rows @ theta - target) ** 2)), 1.0)
    precision = rows.T @ rows / misfit + np.diag(1 / PRIOR_SD**2)
    covariance = np.linalg.inv(precision) / np.outer(np.maximum(theta, 0.1), np.maximum(theta, 0.1))
    return Calibration(
        kind="fitted",
        model=prior.model,
        gpu=prior.gpu,
        source=source,
        step_time=start.with_coefficients(theta * scale),
        covariance=tuple(map(tuple, covariance.tolist())),
        cell_sd=CELL_SD * misfit**0.5,
        time_sd=CELL_SD * misfit**0.5,
    )


def window_sums(runs: Sequence[StepRecord], step_time: StepTime) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Features and seconds of all windows of the runs, shapes (windows, 7) and (windows,)."""
    features, seconds = [], []
    for run in runs:
        num_windows = max(run.num_steps // WINDOW_STEPS, 1)
        starts = np.linspace(0, run.num_steps, num_windows, endpoint=False).astype(int)
        features.append(np.add.reduceat(step_features(run.columns, step_time.knee, step_time.graph_sizes), starts))
        seconds.append(np.add.reduceat(run.steps_s, starts))
    return np.concatenate(features), np.concatenate(seconds)


def _solve(rows: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.optimize import nnls  # noqa: PLC0415 - half a second to import, and most runs do not fit

    return np.asarray(nnls(rows, target)[0])
