"""`maitre verify --watch`: the verdict again and again, over the last minutes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rich.console import RenderableType

    from maitre.cli.prometheus_options import PrometheusOptions
    from maitre.cli.server_options import ServerOptions
    from maitre.cli.verify_options import LimitOptions, SourceOptions
    from maitre.metric_series import FloatArray, MetricSeries
    from maitre.verify.evidence import Evidence
    from maitre.verify.verification import Verification

KEPT_S = 900.0
"""How far back a view of /metrics looks …"""
RECENT = "15min"
"""… and one of Prometheus."""
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40


def watch_server(
    sources: SourceOptions, access: PrometheusOptions, limits: LimitOptions, server: ServerOptions,
    serve_command: str | None, *, seed: int, num_looks: int | None = None,
) -> int:  # fmt: skip
    """Show the verdict until the user ends it; the exit code is that of the last look.

    Args:
        sources: one URL.
        access: who asks.
        limits: the limits in force.
        server: the rest of what is known of it.
        serve_command: the command that started it.
        seed: of the test for more than one mode.
        num_looks: how often to look; None for ever.
    """
    from rich.console import Console
    from rich.live import Live

    from maitre.errors import SystemFailure
    from maitre.units import parse_duration_s
    from maitre.verify.verdict import STAYS

    console, look = Console(), _looker(sources, access, limits, server, serve_command, seed)
    every_s, code, number = parse_duration_s(sources.every), 1, 0
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        try:
            while num_looks is None or number < num_looks:
                number += 1
                try:
                    answer, evidence = look()
                except SystemFailure as error:
                    live.update(f"[red]{error.args[0]}[/red]", refresh=True)
                else:
                    code = 0 if answer.verdict in STAYS else 1
                    live.update(_view(answer, evidence), refresh=True)
                if num_looks is None or number < num_looks:
                    time.sleep(every_s)
        except KeyboardInterrupt:
            pass
    return code


def _looker(
    sources: SourceOptions, access: PrometheusOptions, limits: LimitOptions, server: ServerOptions,
    serve_command: str | None, seed: int,
) -> Callable[[], tuple[Verification, Evidence]]:  # fmt: skip
    """One look: Prometheus answers a window each time, of /metrics the scrapes are kept."""
    from maitre.cli.verify import judged
    from maitre.cli.verify_sources import ReadSources, read_sources

    if sources.prometheus is not None:
        window = replace(sources, since=sources.since or RECENT)
        return lambda: judged(read_sources(window, access), limits, server, serve_command, seed)
    once, kept = replace(sources, for_="0s"), _Kept()

    def look() -> tuple[Verification, Evidence]:
        read = read_sources(once, access)
        series = kept.add(read.series)
        return judged(ReadSources(read.source, series, notes=read.notes), limits, server, serve_command, seed)

    return look


class _Kept:
    """Scrapes of the last minutes."""

    def __init__(self) -> None:
        self._series: tuple[MetricSeries, ...] = ()

    def add(self, series: Sequence[MetricSeries]) -> tuple[MetricSeries, ...]:
        """All that is kept, with the new samples."""
        from maitre.metric_series import MetricSeries
        from maitre.verify.sources.same_series import join_pieces

        newest_s = max((float(one.time_s[-1]) for one in series), default=0.0)
        joined = join_pieces([*self._series, *series])
        recent = [(one, one.time_s >= newest_s - KEPT_S) for one in joined]
        self._series = tuple(
            MetricSeries(one.name, one.labels, one.time_s[keep], one.values[keep]) for one, keep in recent if keep.any()
        )
        return self._series


def _view(answer: Verification, evidence: Evidence) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    from maitre.cli.verify_print import rendered

    table = Table.grid(padding=(0, 2))
    for engine in evidence.engines:
        name = engine.name or "requests"
        table.add_row(f"{name} running", _spark(engine.running), _last(engine.running, "{:.0f}"))
        table.add_row(f"{name} waiting", _spark(engine.waiting), _last(engine.waiting, "{:.0f}"))
        table.add_row(f"{name} KV usage", _spark(engine.kv_usage, 1.0), _last(engine.kv_usage, "{:.0%}"))
    return Group(*rendered(answer), "", table)


def _spark(values: FloatArray, top: float | None = None) -> str:
    """The last samples as a row of bars."""
    known = values[np.isfinite(values)][-_WIDTH:]
    if not len(known):
        return ""
    highest = top or max(float(known.max()), 1.0)
    return "".join(_BARS[min(int(value / highest * len(_BARS)), len(_BARS) - 1)] for value in known)


def _last(values: FloatArray, form: str) -> str:
    known = values[np.isfinite(values)]
    return form.format(known[-1]) if len(known) else "not exposed"
