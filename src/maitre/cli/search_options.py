"""How tune is told how sure to be, and how long to measure."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from maitre.cli.numbers import Count

if TYPE_CHECKING:
    from maitre.measuring import RunLimits
    from maitre.tune import Goal

Fraction = Annotated[float, Parameter(validator=Number(gt=0, lt=1))]


@Parameter(name="*")
@dataclass(frozen=True)
class SearchOptions:
    """How good, how sure, and at what cost."""

    _: KW_ONLY
    epsilon: Fraction = 0.02
    """Cells within this share of the best throughput are equally good; the calmest of them is recommended."""
    delta: Fraction = 0.05
    """How unsure the answer may be: measuring stops when the recommended cell is within epsilon of the best with
    probability 1 - delta."""
    search: Literal["challenge", "grid"] = "challenge"
    """challenge: measure only what can still win. grid: measure every cell."""
    max_trials: Count = 12
    """The most runs of a challenge."""
    max_time: str | None = None
    """The longest time to begin runs of a challenge in, such as 10min; no limit when not given."""

    confirm: Literal["fresh", "live", "none"] = "fresh"
    """Before a change is recommended, run it and the present setting in turn, twice each: on fresh starts of the
    server, or on the one that is up (live)."""

    drift: Annotated[bool, Parameter(negative="")] = False
    """Of equally good cells, recommend the one that loses least when prompts grow by 30 %, requests by half, or the KV
    pool shrinks by 10 %; all requests at once only."""

    def goal(self, seed: int) -> Goal:
        """How good, and how sure."""
        from maitre.tune import Goal

        return Goal(self.epsilon, self.delta, seed, self.drift)

    def limits(self) -> RunLimits:
        """When to stop though the answer is not sure.

        Raises:
            UsageError: not a duration.
        """
        from math import inf

        from maitre.measuring import RunLimits
        from maitre.units import parse_duration_s

        return RunLimits(self.max_trials, inf if self.max_time is None else parse_duration_s(self.max_time))


DEFAULT_SEARCH = SearchOptions()
"""The default of a verb's parameter."""
