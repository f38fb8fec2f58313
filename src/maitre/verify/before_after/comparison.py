"""Before and after a change, like with like: did it help?

A server that keeps up gives as many tokens as are asked for, whatever its setting: it is compared by its latency at
equal load. One at which requests wait all the time is compared by its throughput. Sub-windows are compared with those
of the other side that saw the same load and the same traffic; where there are hardly any, there is no comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from maitre.records import Record
from maitre.verify.before_after.comparability import Obstacle, obstacle
from maitre.verify.before_after.matched_pairs import Load, same_load_pairs, saturated_pairs
from maitre.verify.before_after.measures import Measure, MeasureName, Scale, measures
from maitre.verify.before_after.paired_change import PairedChange, paired_change
from maitre.verify.window_figures import WindowFigures

CONFIDENCE = 0.95
"""That no interval of those that decide misses its change."""


class Change(Record):
    """One measure, before and after, over matched pairs of sub-windows."""

    measure: MeasureName
    title: str
    load: Load
    """What was equal within the pairs; saturated: both ran as fast as they could."""
    before: float
    after: float
    change: float
    """Ratio - 1 on the scale `ratio`, else the difference; what the pairs' loads still differ by is taken out."""
    low: float
    high: float
    """Interval of the change at 95 % for all deciding measures together."""
    scale: Scale
    decides: bool
    """Whether the verdict rests on it."""
    verdict: Literal["improved", "unchanged", "worse"]
    num_pairs: int

    def __str__(self) -> str:
        level, step = ("{:.1%}", "{:+.1%} points") if self.scale == "share" else ("{:.4g}", "{:+.3g}")
        step = "{:+.1%}" if self.scale == "ratio" else step
        change, low, high = (step.format(value) for value in (self.change, self.low, self.high))
        levels = f"{level.format(self.before)} before, {level.format(self.after)} after"
        return f"{self.title}: {levels}, {change} ({low} to {high})"


class Comparison(Record):
    """What a change did."""

    verdict: Literal["improved", "unchanged", "worse", "mixed", "not-comparable"]
    """Mixed: some measures that decide improved, others became worse."""
    reason: str
    remedy: str = ""
    changes: tuple[Change, ...] = ()
    """Those that decide first."""
    num_pairs: int = 0
    """Of sub-windows at equal load."""
    num_saturated_pairs: int = 0


def compare_windows(
    before: Sequence[WindowFigures],
    after: Sequence[WindowFigures],
    ttft_bound_s: float | None = None,
    itl_bound_s: float | None = None,
) -> Comparison:
    """Compare two times by their sub-windows.

    Args:
        before: sub-windows from before the change, in any order; all about as long as each other.
        after: those from after it, about as long as those.
        ttft_bound_s: beyond it a request is in the tail of the time to first token, rounded up to a bucket's bound;
            None: about 5 % are.
        itl_bound_s: the same for tokens and the inter-token latency.
    """
    groups = [same_load_pairs(before, after), saturated_pairs(before, after)]
    numbers = {"num_pairs": len(groups[0]), "num_saturated_pairs": len(groups[1])}
    obstacles = [obstacle(pairs) for pairs in groups]
    usable = [pairs for pairs, found in zip(groups, obstacles, strict=True) if found is None]
    if not usable:
        told = obstacles[int(len(groups[1]) > len(groups[0]))] or Obstacle("", "")
        return Comparison(verdict="not-comparable", reason=told.reason, remedy=told.remedy, **numbers)
    asked = [(pairs, measure) for pairs in usable for measure in measures(pairs, ttft_bound_s, itl_bound_s)]
    num_deciding = max(1, sum(measure.decides for _, measure in asked))
    confidence = 1 - (1 - CONFIDENCE) / num_deciding
    changes = [
        _change(pairs.load, measure, found)
        for pairs, measure in asked
        if (found := paired_change(pairs, measure.figure, confidence, is_ratio=measure.scale == "ratio"))
    ]
    return _verdict(sorted(changes, key=lambda change: not change.decides), numbers)


def _change(load: Load, measure: Measure, found: PairedChange) -> Change:
    change, low, high = (
        float(np.expm1(value)) if measure.scale == "ratio" else value for value in (found.change, found.low, found.high)
    )
    smallest = np.log1p(measure.smallest) if measure.scale == "ratio" else measure.smallest
    gain = found.change if measure.more_is_better else -found.change
    is_sure = found.low > 0 or found.high < 0
    matters = is_sure and abs(gain) >= smallest
    return Change(
        measure=measure.name,
        title=measure.title,
        load=load,
        before=found.before,
        after=found.after,
        change=change,
        low=low,
        high=high,
        scale=measure.scale,
        decides=measure.decides,
        verdict="unchanged" if not matters else "improved" if gain > 0 else "worse",
        num_pairs=found.num_pairs,
    )


def _verdict(changes: Sequence[Change], numbers: dict[str, int]) -> Comparison:
    deciding = [change for change in changes if change.decides]
    if not deciding:
        return Comparison(
            verdict="not-comparable",
            reason="neither latency nor, at saturation, throughput is exposed on both sides",
            remedy="read the metrics endpoint or Prometheus, not the log alone",
            changes=tuple(changes),
            **numbers,
        )
    moved = [change for change in deciding if change.verdict != "unchanged"]
    ways = {change.verdict for change in moved}
    verdict = "mixed" if len(ways) > 1 else next(iter(ways), "unchanged")
    reason = "; ".join(map(str, moved)) or _nothing_moved(deciding)
    return Comparison(verdict=verdict, reason=reason, changes=tuple(changes), **numbers)


def _nothing_moved(deciding: Sequence[Change]) -> str:
    """With how large a change could have gone unseen."""
    widest = max((c for c in deciding if c.scale == "ratio"), key=lambda c: c.high - c.low, default=None)
    unseen = f": {widest.title} may have changed by {widest.low:+.0%} to {widest.high:+.0%}" if widest else ""
    return f"no measure that decides changed by more than noise{unseen}"
