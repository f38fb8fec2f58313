"""Latency targets, as a service level objective names them: `ttft_p95=500ms`, `itl_p99=50ms`, `e2e_max=20s`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

from pydantic import Field

from maitre.errors import UsageError
from maitre.records import Record
from maitre.units import parse_duration_s

Latency = Literal["ttft", "itl", "tpot", "e2e"]
"""Time to first token, inter-token latency, time per output token, end-to-end latency (docs/simulate.md)."""

_HINT = "write METRIC_PERCENTILE=DURATION, such as ttft_p95=500ms, itl_p99=50ms, tpot_p90=40ms or e2e_max=20s"


class LatencyTarget(Record):
    """A percentile of a latency, and what it must not exceed."""

    metric: Latency
    percent: int = Field(ge=50, le=100)
    """Share of the requests (itl: of the tokens) that must be within the limit, in percent; 100: all, the maximum."""
    limit_s: float = Field(gt=0)

    def __str__(self) -> str:
        percentile = "max" if self.percent == 100 else f"p{self.percent}"
        limit = f"{self.limit_s:g}s" if self.limit_s >= 1 else f"{self.limit_s * 1e3:g}ms"
        return f"{self.metric}_{percentile}={limit}"


def parse_latency_target(text: str) -> LatencyTarget:
    """Read one target.

    Args:
        text: `METRIC_PERCENTILE=DURATION` with ttft, itl, tpot or e2e, and p50 to p99 or max; a bare number is seconds.

    Raises:
        UsageError: it is not such a target; the message says which part is wrong.
    """
    match = re.fullmatch(r"([a-z0-9]+)(?:_(\w+))?=(.+)", text.strip())
    if not match:
        raise UsageError(f"'{text}' is not a latency target", _HINT)
    metric, percentile, limit = match.groups()
    if metric not in get_args(Latency):
        raise UsageError(f"'{text}': '{metric}' is not one of {', '.join(get_args(Latency))}", _HINT)
    limit_s = parse_duration_s(limit)
    if limit_s == 0:
        raise UsageError(f"'{text}': nothing takes no time", "name a limit above 0")
    return LatencyTarget(metric=metric, percent=_percent(text, percentile), limit_s=limit_s)


def parse_latency_targets(texts: Sequence[str]) -> tuple[LatencyTarget, ...]:
    """Read targets that hold together.

    Raises:
        UsageError: one of them is wrong, or two speak of the same percentile.
    """
    targets = tuple(parse_latency_target(text) for text in texts)
    named = [(target.metric, target.percent) for target in targets]
    for target, name in zip(targets, named, strict=True):
        if named.count(name) > 1:
            what = str(target).partition("=")[0]
            raise UsageError(f"{what} has more than one limit", "give each percentile of a latency once")
    return targets


def _percent(text: str, percentile: str | None) -> int:
    if percentile == "max":
        return 100
    match = re.fullmatch(r"p(\d\d)", percentile or "")
    if not match or int(match[1]) < 50:
        what = f"'{percentile}' is not a percentile from p50 to p99, or max" if percentile else "which percentile?"
        raise UsageError(f"'{text}': {what}", _HINT)
    return int(match[1])
