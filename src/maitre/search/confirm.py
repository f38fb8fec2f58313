"""The gain of one setting over another, from runs of both in turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

PAIR_SD, PAIR_WEIGHT = 0.007, 4
"""Spread of the logarithm of the ratio of two runs, known before the first pair, and how many pairs that counts as:
single runs on an H200 that did nothing else differed by 0 to 1 % (0.5 % each, two of them in a ratio)."""

NUM_PAIRS, MOST_PAIRS = 2, 4
"""Pairs to run, and how many at most while it is open whether there is a gain."""


def is_new_first(pair: int) -> bool:
    """The order within a pair: ABBA ABBA …, so that a slow drift hits both settings alike."""
    return pair % 2 == 0


def paired_gain(new_s: Sequence[float], old_s: Sequence[float]) -> tuple[float, float, float]:
    """Throughput of the new setting over the old one, minus 1, and its 95 % interval.

    Pairs are few, so their spread is not left to them alone: what is known before counts as `PAIR_WEIGHT` pairs more
    (a scaled inverse χ² prior of the variance; the interval is Student's t with these degrees of freedom added).

    Args:
        new_s: seconds of each run of the new setting over the same workload, at least one.
        old_s: seconds of the run of the old setting beside each.
    """
    logs = np.log(old_s) - np.log(new_s)
    freedom = PAIR_WEIGHT + len(logs) - 1
    variance = (PAIR_WEIGHT * PAIR_SD**2 + float(np.sum((logs - logs.mean()) ** 2))) / freedom
    half = float(stdtrit(freedom, 0.975)) * np.sqrt(variance / len(logs))
    centre = float(logs.mean())
    return float(np.expm1(centre)), float(np.expm1(centre - half)), float(np.expm1(centre + half))
