"""The step time of a server of which neither model nor study is known, from the windows of its own metrics.

Where the load changes over the day, the mean inter-token latency T of a sub-window follows the requests that run in it:

    T = a + b·(B + P) + c·K

    B   running requests
    P   prompt tokens computed in a step: prompt tokens a second, times T
    K   context tokens of the running requests: KV usage times the pool

With one mix of traffic B, P and K rise together, so a, b and c cannot be told apart, only their sum along that line:
enough for means at another number of running requests, and nothing else. The fit is the most likely one under relative
noise, all three non-negative, with a wide prior on how the time is shared between them (that of a 7B model on an H200,
in the ratios that a roofline gives).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import Calibration
from maitre.calibration.served import unknown_prior
from maitre.errors import InputError
from maitre.records import ServerConfig
from maitre.verify.window_figures import WindowFigures

Array = NDArray[np.float64]

WINDOW_NOISE = 0.03
"""Relative noise of a sub-window's mean inter-token latency, at least; sub-windows that fit worse widen it."""
PRIOR_SD = 1.0
"""Relative spread of each of a, b and c."""
FEWEST_WINDOWS = 4
FURTHER = 2.0
"""The fit has to hold for so many times the running requests of the busiest sub-window …"""
MOST_SD = 0.1
"""… within this relative standard deviation."""
CELL_SD = 0.04
"""Relative spread of a cell's time around the fit; that of the roofline prior."""
LEAST_SHARE = 0.1
"""As in `maitre.calibration.fit`: a coefficient near 0 has no relative spread."""
PLACES = (0, 3), (4,), (2, 5)
"""Where a, b and c stand among the seven coefficients (`maitre.simulator.step_time`), without a knee."""

HINT = "give --model and --gpu, or --study: the simulator then knows how long the server's steps are"


def fit_windows(
    windows: Sequence[WindowFigures], server: ServerConfig, pool_tokens: float, num_engines: int = 1
) -> Calibration:
    """The step time that the sub-windows speak for; only means follow from it, no percentiles.

    Args:
        windows: successive parts of one window, at one setting of the dials.
        server: its settings, as far as they are known.
        pool_tokens: KV tokens of one engine.
        num_engines: that share the traffic.

    Raises:
        InputError: too few sub-windows, or the load hardly changes between them.
    """
    rows = [row for one in windows if (row := _row(one, pool_tokens, num_engines)) is not None]
    if len(rows) < FEWEST_WINDOWS:
        raise InputError(
            f"{len(rows)} parts of the window tell inter-token latency, running requests and KV usage, and "
            f"{FEWEST_WINDOWS} are needed to learn how long steps are",
            f"{HINT}; or look at a longer window",
        )
    fit = _fit(np.array(rows), server)
    if fit.relative_sd(FURTHER * np.array(max(rows, key=lambda row: row[1])[1:])) > MOST_SD:
        running = [row[1] for row in rows]
        raise InputError(
            f"the load hardly changes within the window ({min(running):.0f} to {max(running):.0f} running requests), "
            "so its inter-token latencies do not tell how long steps are with more of them",
            f"{HINT}; or look at a window with calm and busy hours",
        )
    return _calibration(fit, server, len(rows))


@dataclass(frozen=True, slots=True)
class _Fit:
    """a, b and c over their prior, which are near 1 where nothing speaks against it."""

    shares: Array
    """Shape (3,)."""
    covariance: Array
    """Of the shares, shape (3, 3)."""
    prior: Array
    """Seconds, and seconds a token, shape (3,)."""
    misfit: float
    """Mean square of the residuals over the noise, at least 1."""

    def relative_sd(self, load: Array) -> float:
        """Of a step's time at a load: running requests, prompt tokens and context tokens, shape (3,)."""
        step = _features(load[None])[0] * self.prior
        return float(np.sqrt(step @ self.covariance @ step) / (step @ self.shares))


def _row(window: WindowFigures, pool_tokens: float, num_engines: int) -> tuple[float, float, float, float] | None:
    """Seconds, running requests, prompt tokens and context tokens of a mean step of one engine."""
    itl_s = window.itl and window.itl.mean
    if not itl_s or not window.running or window.kv_usage is None or window.prompt_tokens_per_s is None:
        return None
    computed_per_s = window.prompt_tokens_per_s * (1 - (window.prefix_hit_rate or 0.0)) / num_engines
    return itl_s, window.running / num_engines, computed_per_s * itl_s, window.kv_usage * pool_tokens


def _features(loads: Array) -> Array:
    """What a, b and c are multiplied by, shape (n, 3), from running requests, prompt and context tokens."""
    return np.column_stack([np.ones(len(loads)), loads[:, 0] + loads[:, 1], loads[:, 2]])


def _fit(rows: Array, server: ServerConfig) -> _Fit:
    from scipy.optimize import nnls  # noqa: PLC0415 - half a second to import, and most windows are not fitted

    seconds, features = rows[:, 0], _features(rows[:, 1:])
    known = unknown_prior(server, "unknown").step_time
    prior = np.array([known.a0, known.b1, known.c0])
    prior = prior * float(np.exp(np.mean(np.log(seconds / (features @ prior)))))
    told = features * prior / (WINDOW_NOISE * seconds)[:, None]
    target = np.full(len(seconds), 1 / WINDOW_NOISE)
    wide = np.eye(3) / PRIOR_SD
    shares = np.asarray(nnls(np.vstack([told, wide]), np.concatenate([target, wide @ np.ones(3)]))[0])
    misfit = max(float(np.mean((told @ shares - target) ** 2)), 1.0)
    covariance = np.asarray(np.linalg.inv(told.T @ told / misfit + wide.T @ wide), dtype=np.float64)
    return _Fit(shares, covariance, prior, misfit)


def _calibration(fit: _Fit, server: ServerConfig, num_windows: int) -> Calibration:
    anything = unknown_prior(server, "unknown")
    least = np.maximum(fit.shares, LEAST_SHARE)
    coefficients, covariance = np.zeros(7), np.zeros((7, 7))
    for one, places in enumerate(PLACES):
        coefficients[list(places)] = fit.shares[one] * fit.prior[one]
        for other, others in enumerate(PLACES):
            covariance[np.ix_(places, others)] = fit.covariance[one, other] / (least[one] * least[other])
    return Calibration(
        kind="fitted",
        model=server.model,
        gpu=anything.gpu,
        source=f"{num_windows} parts of the observed window, which tell means only",
        step_time=anything.step_time.model_copy(update={"knee": 0.0}).with_coefficients(coefficients),
        covariance=tuple(map(tuple, covariance.tolist())),
        cell_sd=CELL_SD,
        time_sd=float(np.hypot(WINDOW_NOISE * fit.misfit**0.5, CELL_SD)),
    )
