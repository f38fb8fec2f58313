"""Episodes of searches as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from contenders import EPSILON, GRID, OURS, WITHOUT_STOP
from numpy.typing import NDArray
from scenarios import Scenario

Array = NDArray[np.float64]

NUM_RUNS = (3, 5, 8, 12)
"""Runs after which a search without a stopping rule is looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """One strategy on one surface."""

    seconds: Array
    """Shape (runs,): measured after each run, all in all."""
    regrets: Array
    """Shape (runs,): of what would be recommended after each run; NaN where nobody asked."""
    num_cells: int
    """How many different cells were measured."""
    grid_s: float
    """What measuring every cell once takes."""
    has_stopped: bool
    """By itself, before it had made as many runs as there are cells or with the last of them."""
    decisions_s: Array
    """Shape (runs,): CPU seconds between the end of a run and the next."""
    longest_watch_s: float
    """CPU seconds of the longest look at a run under way."""

    @property
    def num_runs(self) -> int:
        """How many runs it made."""
        return len(self.seconds)


Results = dict[tuple[str, str], list[Episode]]
"""By the scenario and the strategy."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One line: episodes, each looked at after a number of runs, shape (episodes,)."""

    name: str
    episodes: Sequence[Episode]
    runs: NDArray[np.int64]

    @property
    def regrets(self) -> Array:
        """Of what it recommends, shape (episodes,)."""
        return np.array([e.regrets[n - 1] for e, n in zip(self.episodes, self.runs, strict=True)])

    @property
    def share_missed(self) -> float:
        """Share of the episodes that end more than EPSILON below the best."""
        return float(np.mean(self.regrets > EPSILON))

    @property
    def seconds(self) -> Array:
        """Measured until then, shape (episodes,)."""
        return np.array([e.seconds[n - 1] for e, n in zip(self.episodes, self.runs, strict=True)])

    @property
    def share_of_grid(self) -> float:
        """Measured seconds over those of the grid."""
        return float(np.mean(self.seconds / [e.grid_s for e in self.episodes]))

    def __str__(self) -> str:
        decisions_s = np.concatenate([e.decisions_s for e in self.episodes])
        at_budget = (
            "" if self.name.startswith(WITHOUT_STOP) else f"{np.mean([not e.has_stopped for e in self.episodes]):.1%}"
        )
        median, p95, most = np.quantile(self.runs, [0.5, 0.95, 1])
        columns = (
            self.name,
            f"{self.runs.mean():.1f} ({median:.0f} / {p95:.0f} / {most:.0f})",
            f"{self.seconds.mean():.0f} s",
            f"{self.share_of_grid:.0%}",
            f"{self.share_missed:.1%}",
            f"{self.regrets.mean():.1%}",
            f"{self.regrets.max():.1%}",
            at_budget,
            f"{1e3 * np.median(decisions_s):.1f} / {1e3 * decisions_s.max():.0f} ms",
        )
        return f"| {' | '.join(columns)} |"


HEADER = (
    f"| search | runs (median / p95 / most) | measured | of the grid | P(regret > {EPSILON:.0%}) | mean regret | worst "
    "| at the budget | CPU a decision, median / most |\n|---|---|---|---|---|---|---|---|---|"
)


def print_tables(scenarios: Sequence[Scenario], names: Sequence[str], results: Results, *, by: str) -> None:
    """A summary, and a table for each group of scenarios or for each scenario."""
    tables: dict[str, dict[str, list[Episode]]] = {}
    for scenario in scenarios:
        table = tables.setdefault(scenario.group if by == "group" else str(scenario), {name: [] for name in names})
        for name in names:
            table[name] += results[str(scenario), name]
    if OURS in names:
        print_summary(tables, [name for name in names if name in WITHOUT_STOP])
    for title, episodes in tables.items():
        print(f"\n**{title}**\n\n{HEADER}")
        for row in rows(episodes):
            print(row)


def print_summary(tables: dict[str, dict[str, list[Episode]]], without_stop: Sequence[str]) -> None:
    """A line for each table: ours, and what the others do in the same time, and need to be as sure."""
    others = [f"P({name}, same time)" for name in without_stop] + [f"time of {name}, as sure" for name in without_stop]
    columns = ["", "runs", "time", f"P(regret > {EPSILON:.0%})", "worst", "P(grid)", *others]
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for title, episodes in tables.items():
        ours = whole(OURS, episodes[OURS])
        grid = [f"{whole(GRID, episodes[GRID]).share_missed:.1%}"] if GRID in episodes else ["not run"]
        same_time = [as_long_as(ours, name, episodes[name]) for name in without_stop]
        as_sure = [as_sure_as(ours, name, episodes[name]) for name in without_stop]
        cells = [
            *(title, f"{ours.runs.mean():.1f}", f"{ours.share_of_grid:.0%}", f"{ours.share_missed:.1%}"),
            *(f"{ours.regrets.max():.1%}", *grid),
            *(f"{row.share_missed:.1%}" for row in same_time),
            *(f"{row.share_of_grid:.0%}" if row.share_missed <= ours.share_missed else "never" for row in as_sure),
        ]
        print(f"| {' | '.join(cells)} |")


def rows(episodes: dict[str, list[Episode]]) -> Iterator[Row]:
    """The lines of one table.

    Args:
        episodes: by strategy, in the same order of surfaces and repetitions.
    """
    ours: Row | None = None
    for name, played in episodes.items():
        if name not in WITHOUT_STOP:
            row = whole(name, played)
            ours = row if name == OURS else ours
            yield row
            continue
        for num_runs in NUM_RUNS:
            yield after(name, played, num_runs)
        if ours is not None:
            yield as_long_as(ours, name, played)
            yield as_sure_as(ours, name, played)


def whole(name: str, played: Sequence[Episode]) -> Row:
    """A search as it ended."""
    return Row(name, played, np.array([e.num_runs for e in played]))


def after(name: str, played: Sequence[Episode], num_runs: int) -> Row:
    """A search without a stopping rule after so many runs, or after all cells."""
    return Row(f"{name}, {num_runs} runs", played, np.array([min(num_runs, e.num_runs) for e in played]))


def as_long_as(ours: Row, name: str, played: Sequence[Episode]) -> Row:
    """After as many measured seconds as ours took in the same repetition; the run under way is finished."""
    runs = [
        min(int(np.searchsorted(e.seconds, seconds * (1 - 1e-9))) + 1, e.num_runs)
        for e, seconds in zip(played, ours.seconds, strict=True)
    ]
    return Row(f"{name}, as long as {ours.name}", played, np.array(runs))


def as_sure_as(ours: Row, name: str, played: Sequence[Episode]) -> Row:
    """After the fewest runs that miss no more often than ours; after all cells if it takes more."""
    most = max(e.num_runs for e in played)
    each = (after(name, played, num_runs) for num_runs in range(1, most + 1))
    enough = next((row for row in each if row.share_missed <= ours.share_missed), None)
    if enough is None:
        return whole(f"{name}, never as sure", played)
    return Row(f"{name}, as sure as {ours.name}", played, enough.runs)
