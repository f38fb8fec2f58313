"""Do tokens come at one pace or at two? Three answers from the buckets of the inter-token latency.

A second, slower pace is what sequences feel that wait while other requests' prompts are computed. A histogram proves it
where a bucket between two others is emptier than both; where no such bucket is, paces close to each other may hide, and
the answer says how close. What shows only when busy and quiet hours are put together is no second pace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Literal

import numpy as np

from maitre.metric_series import FloatArray, Histogram
from maitre.records import Record
from maitre.units import format_seconds
from maitre.verify.modes import modality_text as text
from maitre.verify.modes.unimodal import one_mode_p_values
from maitre.verify.modes.valley import LEAST_SHARE, Valley, bucket_widths, deepest_valley

SIGNIFICANCE = 0.01
"""Chance that noise alone makes one sub-window reject one mode; a valley that matters has to be there, too."""
NUM_DRAWS = 500
LEAST_SAMPLES = 200
"""Independent observations below which nothing is said, and up to which sub-windows are put together."""
TOKENS_PER_STEP = 256.0
"""Taken where the number of steps is not exposed: vLLM's long-time default of max_num_seqs."""


class Mode(Record):
    """One pace."""

    lower_s: float
    upper_s: float
    """Bounds of the bucket where it peaks; of logged steps, their 5th and 95th percentile."""
    share: float
    """Of the tokens, 0 to 1."""

    def __str__(self) -> str:
        return f"{format_seconds(self.lower_s)} to {format_seconds(self.upper_s)}"


class Modality(Record):
    """Whether the inter-token latency has one mode, why that is the answer, and what to do."""

    verdict: Literal["one-mode", "two-modes", "cannot-tell"]
    reason: str
    remedy: str = ""
    modes: tuple[Mode, ...] = ()
    """The faster one first; with one mode or two regimes: where most tokens are, of all of them or of each regime."""
    blind_ratio: float | None = None
    """Two modes that are closer than this would not have been seen; None: two of any ratio could hide."""
    two_regimes: bool = False
    """Whether two modes show only when sub-windows are put together."""
    two_mode_share: float = 0.0
    """Share of the tokens that came in sub-windows with two modes, 0 to 1."""
    p_value: float | None = None
    """Of one mode over the whole time, or a bound of it; None where no valley matters."""
    num_windows: int = 0
    """Sub-windows that were judged."""
    overflow_share: float = 0.0
    """Share of the tokens beyond the last finite bound, where nothing can be told."""


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """Counts of all buckets, the infinite one last, and how many of the observations are independent."""

    counts: FloatArray
    size: float

    @property
    def tokens(self) -> float:
        """All observations."""
        return float(self.counts.sum())

    @property
    def shares(self) -> FloatArray:
        """Of the observations, in all buckets."""
        return np.asarray(self.counts / self.tokens, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class _Tested:
    """A sample, its deepest valley that matters, and the p-value of one mode, 1 without a valley."""

    sample: _Sample
    valley: Valley | None
    p_value: float

    @property
    def two_modes(self) -> Valley | None:
        """The valley, where it is no noise."""
        return self.valley if self.p_value < SIGNIFICANCE else None


def judge_modes(windows: Sequence[Histogram], num_steps: Sequence[float | None], seed: int | Sequence[int]) -> Modality:
    """Judge the inter-token latency of successive sub-windows.

    Servers of different speed that were added up look like two modes, and so does a load that swings within a
    sub-window.

    Args:
        windows: inter-token latency in seconds, shape (n,). Those with other bounds than most tokens have are left out.
        num_steps: engine steps of each, shape (n,): the increase of `vllm:iteration_tokens_total_count` over engines,
            as all sequences of a step share its latency. None where it is not exposed.
        seed: of the bootstrap.
    """
    bounds, samples = _of_one_resolution(windows, num_steps)
    if not samples:
        return _answer("cannot-tell", text.nothing_counted())
    parts = _merged(samples)
    total = _Sample(np.sum([part.counts for part in parts], axis=0), sum(part.size for part in parts))
    if total.size < LEAST_SAMPLES:
        return _answer("cannot-tell", text.too_few(total.size, LEAST_SAMPLES))
    *tested, whole = _test([*parts, total], bounds, np.random.default_rng(seed))
    doubles = [part for part in tested if part.two_modes]
    two_mode_share = sum(part.sample.tokens for part in doubles) / total.tokens
    known = {
        "two_mode_share": two_mode_share,
        "p_value": whole.p_value if whole.valley else None,
        "num_windows": len(parts),
        "overflow_share": float(total.shares[-1]),
    }
    if two_mode_share > 0.5:
        largest = max(doubles, key=lambda part: part.sample.tokens)
        valley = whole.valley or largest.valley  # where the modes wander, the sum fills their valley
        if valley and _is_large(min(valley.fast_share, valley.slow_share), total.size):
            fast, slow = modes = _modes_beside(valley, bounds)
            told = text.two_modes(str(fast), fast.share, str(slow), slow.share)
            return _answer("two-modes", told, modes, **known)
    if whole.two_modes and _take_turns(parts, whole.two_modes):
        modes = _modes_beside(whole.two_modes, bounds)
        return _answer("one-mode", text.two_regimes(*map(str, modes)), modes, two_regimes=True, **known)
    return _one_mode(total, bounds, known)


def _test(samples: Sequence[_Sample], bounds: FloatArray, rng: np.random.Generator) -> list[_Tested]:
    """Look for a valley in each, and test those that have one on both axes."""
    finite = bounds[1:-1]
    valleys = [deepest_valley(sample.counts[:-1], finite) for sample in samples]
    rows = [row for row, valley in enumerate(valleys) if valley]
    p_values = np.ones(len(samples))
    if rows:
        counts = np.array([_independent(samples[row]) for row in rows])
        by_axis = [one_mode_p_values(counts, axis, NUM_DRAWS, SIGNIFICANCE, rng) for axis in bucket_widths(finite)]
        p_values[rows] = np.maximum(*by_axis)
    return list(starmap(_Tested, zip(samples, valleys, p_values.tolist(), strict=True)))


def _one_mode(total: _Sample, bounds: FloatArray, known: dict[str, Any]) -> Modality:
    """No second mode seen: could there be one? Yes, beside the main one, as far as neighbouring buckets reach."""
    main = int(total.shares.argmax())
    near = [n for n in (main - 1, main, main + 1) if n == main or (0 <= n < len(total.shares) and _matters(total, n))]
    mode = Mode(lower_s=bounds[main], upper_s=bounds[main + 1], share=float(total.shares[main]))
    if near[0] == 0:
        return _answer("cannot-tell", text.fastest_bucket(total.shares[0], format_seconds(bounds[1])), **known)
    if near[-1] == len(total.shares) - 1 or _matters(total, -1):
        return _answer("cannot-tell", text.slowest_bucket(total.shares[-1], format_seconds(bounds[-2])), **known)
    ratio = max(bounds[main + 1] / bounds[near[0]], bounds[near[-1] + 1] / bounds[main])
    return _answer("one-mode", text.one_mode(str(mode), ratio), (mode,), blind_ratio=float(ratio), **known)


def _is_large(share: float, size: float) -> bool:
    """Whether a share of so many independent observations is large enough, less twice its standard error."""
    return share - 2.0 * float(np.sqrt(share * (1.0 - share) / size)) >= LEAST_SHARE


def _matters(sample: _Sample, bucket: int) -> bool:
    """Whether a bucket holds enough for a mode of its own."""
    return bool(sample.shares[bucket] >= LEAST_SHARE)


def _modes_beside(valley: Valley, bounds: FloatArray) -> tuple[Mode, Mode]:
    """The two peaks."""
    fast, slow = (
        Mode(lower_s=bounds[peak], upper_s=bounds[peak + 1], share=share)
        for peak, share in ((valley.fast, valley.fast_share), (valley.slow, valley.slow_share))
    )
    return fast, slow


def _take_turns(parts: Sequence[_Sample], valley: Valley) -> bool:
    """Whether some sub-windows have most tokens on one side of the valley, and others on the other side."""
    slower = [part.counts[valley.bottom + 1 :].sum() > part.counts[: valley.bottom].sum() for part in parts]
    return any(slower) and not all(slower)


def _answer(
    verdict: Literal["one-mode", "two-modes", "cannot-tell"],
    told: text.Wording,
    modes: tuple[Mode, ...] = (),
    **known: Any,
) -> Modality:
    return Modality(verdict=verdict, reason=told.reason, remedy=told.remedy, modes=modes, **known)


def _of_one_resolution(
    windows: Sequence[Histogram], num_steps: Sequence[float | None]
) -> tuple[FloatArray, list[_Sample]]:
    """Bounds from 0 to infinity, and the samples that have them."""
    by_bounds: dict[tuple[float, ...], list[_Sample]] = {}
    for window, steps in zip(windows, num_steps, strict=True):
        if window.count > 0 and len(window.upper) > 1 and window.upper[0] > 0:
            size = min(window.count, steps or window.count / TOKENS_PER_STEP)
            by_bounds.setdefault(tuple(window.upper), []).append(_Sample(window.counts, size))
    if not by_bounds:
        return np.array([]), []
    upper, samples = max(by_bounds.items(), key=lambda item: sum(sample.tokens for sample in item[1]))
    return np.array([0.0, *upper]), samples


def _merged(samples: Sequence[_Sample]) -> list[_Sample]:
    """Neighbours put together until each is large enough to be judged; a rest joins the last."""
    merged: list[_Sample] = []
    for sample in samples:
        if merged and merged[-1].size < LEAST_SAMPLES:
            last = merged.pop()
            merged.append(_Sample(last.counts + sample.counts, last.size + sample.size))
        else:
            merged.append(sample)
    if len(merged) > 1 and merged[-1].size < LEAST_SAMPLES:
        rest, last = merged.pop(), merged.pop()
        merged.append(_Sample(last.counts + rest.counts, last.size + rest.size))
    return merged


def _independent(sample: _Sample) -> FloatArray:
    """Counts of the finite buckets as if only independent observations had been seen."""
    return np.asarray(sample.counts[:-1] * (sample.size / sample.tokens), dtype=np.float64)
