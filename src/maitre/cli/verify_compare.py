"""`maitre verify --before WINDOW --after WINDOW`: did the change help?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitre.cli.prometheus_options import PrometheusOptions
    from maitre.cli.verify_options import SourceOptions
    from maitre.cli.verify_sources import ReadSources
    from maitre.verify.before_after.comparison import Comparison
    from maitre.verify.window_figures import WindowFigures

LEAST_PART_S = 60.0
MOST_PARTS = 48
_STYLES = {"improved": "bold green", "unchanged": "bold", "worse": "bold red", "mixed": "bold yellow"}


def compare(
    sources: SourceOptions, access: PrometheusOptions, before: str, after: str, targets: Sequence[str], *, as_json: bool
) -> int:
    """Compare two windows of a Prometheus, or two files of saved scrapes; exit code 0 when nothing became worse."""
    from maitre.verify.before_after.comparison import compare_windows

    sides = [_read(sources, access, text) for text in (before, after)]
    parts = _parts(sides)
    ttft_s, itl_s = _bounds(targets)
    found = compare_windows(parts[0], parts[1], ttft_s, itl_s)
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        _print(found, sides)
    return 0 if found.verdict in {"improved", "unchanged"} else 1


def _read(sources: SourceOptions, access: PrometheusOptions, text: str) -> ReadSources:
    """A window SINCE..UNTIL of the Prometheus, or a file of saved scrapes."""
    from pathlib import Path

    from maitre.cli.verify_sources import read_saved, read_window_of
    from maitre.errors import UsageError

    since, dots, until = text.partition("..")
    if sources.prometheus is not None and dots and since and until:
        return read_window_of(sources, access, since, until)
    if sources.prometheus is None and Path(text).exists():
        return read_saved([text], sources)
    raise UsageError(
        f"'{text}' is no window",
        "with --prometheus write SINCE..UNTIL, such as 26h..25h or 2026-05-01T09:00..2026-05-01T10:00; without it name "
        "a file of saved scrapes",
    )


def _parts(sides: list[ReadSources]) -> list[tuple[WindowFigures, ...]]:
    """Both sides in sub-windows of one length."""
    import numpy as np

    from maitre.errors import InputError
    from maitre.verify.window_figures import figures_over_time

    spans = []
    for side in sides:
        times = np.concatenate([one.time_s for one in side.series])
        times = times[np.isfinite(times)]
        if len(times) < 2 or times.max() <= times.min():
            raise InputError(
                f"{side.source}: fewer than two dated samples", "save scrapes with their times, for minutes"
            )
        spans.append((float(times.min()), float(times.max())))
    shortest_s = min(end - start for start, end in spans)
    length_s = min(max(LEAST_PART_S, shortest_s / MOST_PARTS), shortest_s / 4)
    return [figures_over_time(side.series, *span, length_s) for side, span in zip(sides, spans, strict=True)]


def _bounds(targets: Sequence[str]) -> tuple[float | None, float | None]:
    """Where the tails begin: --slo's bounds of TTFT and ITL."""
    from maitre.slo import parse_latency_targets

    bounds = {target.metric: target.limit_s for target in parse_latency_targets(targets)}
    return bounds.get("ttft"), bounds.get("itl")


def _print(found: Comparison, sides: list[ReadSources]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text.assemble((found.verdict, _STYLES.get(found.verdict, "bold yellow")), ": ", found.reason))
    console.print(Text(f"before: {sides[0].source}; after: {sides[1].source}", style="dim"))
    pairs = f"{found.num_pairs} pairs of sub-windows at equal load, {found.num_saturated_pairs} at saturation"
    console.print(Text(pairs, style="dim"))
    for change in found.changes:
        console.print(Text(f"  {change}" + ("" if change.decides else " (for information)")))
    if found.remedy:
        console.print(Text(f"do: {found.remedy}"))
