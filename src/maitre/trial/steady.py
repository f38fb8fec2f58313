"""The steady window of a burst, and the throughput in it.

With all requests there at once a run has a ramp, in which the slots fill, and a drain, in which nobody waits any more.
Neither is found on a busy server, and both take a larger share of the time the more slots there are. Between them

    begin  `num_running` reaches its plateau, the median over the time in which somebody waits; then one mean lifetime
           of a request later, because the first sequences are all young together: their contexts are short
    end    the waiting queue is empty for the first time after that

A window of less than two mean lifetimes is none: `docs/decisions/0003-what-the-figures-mean.md` has the bias of this
rule and of others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maitre.records import SteadyWindow
from maitre.trial.batch_means import MAX_BATCHES, batch_means
from maitre.trial.latencies import weighted_quantiles
from maitre.trial.run import Run

RULE = "one lifetime behind the plateau of running requests, until nobody waits"
MIN_LIFETIMES = 2


def steady_window(run: Run) -> SteadyWindow | None:
    """The steady window of a run.

    Returns:
        None if requests came at their own times, if nobody ever waited, or if the window is too short.
    """
    plateau = _plateau_steps(run) if run.is_burst else None
    if plateau is None:
        return None
    first, last = plateau
    lifetime_s = float(np.mean(run.last_token_s - run.first_scheduled_s))
    begin_s, end_s = float(run.step_end_s[first]) + lifetime_s, float(run.step_end_s[last])
    if end_s - begin_s < MIN_LIFETIMES * lifetime_s:
        return None
    num_batches = min(int((end_s - begin_s) / lifetime_s), MAX_BATCHES)
    interval = batch_means(_throughputs(run, begin_s, end_s, num_batches))
    return SteadyWindow(
        rule=RULE,
        begin_s=begin_s,
        end_s=end_s,
        total_tokens_per_s=float(_throughputs(run, begin_s, end_s, 1)[0]),
        total_tokens_per_s_low=interval and interval.low,
        total_tokens_per_s_high=interval and interval.high,
        num_batches=interval.num_batches if interval else 0,
        lag1_autocorrelation=interval and interval.lag1_autocorrelation,
    )


def _plateau_steps(run: Run) -> tuple[int, int] | None:
    """The first step of the plateau, and the last that leaves somebody waiting; None if nobody ever waits."""
    somebody_waits = run.num_waiting > 0
    level = weighted_quantiles(run.num_running[somebody_waits], run.steps_s[somebody_waits], (50,))
    if level is None:
        return None
    first = int(np.argmax(run.num_running >= level[0]))
    nobody_waits = np.flatnonzero(~somebody_waits[first:])
    return first, first + int(nobody_waits[0]) - 1 if len(nobody_waits) else len(somebody_waits) - 1


def _throughputs(run: Run, begin_s: float, end_s: float, num_batches: int) -> NDArray[np.float64]:
    """Useful tokens/s in equal parts of a window; a step's tokens are spread over its time. Shape (num_batches,)."""
    edges_s = np.linspace(begin_s, end_s, num_batches + 1)
    num_tokens = np.concatenate([[0], np.cumsum(run.num_useful_tokens)])
    at_edges = np.interp(edges_s, np.concatenate([[0.0], run.step_end_s]), num_tokens)
    throughputs: NDArray[np.float64] = np.diff(at_edges) * num_batches / (end_s - begin_s)
    return throughputs
