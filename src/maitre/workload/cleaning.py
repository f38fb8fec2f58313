"""From a table's rows to requests: rows that are none are dropped and counted by reason, the rest is put in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from maitre.errors import InputError
from maitre.records import Workload
from maitre.workload.columns import ChosenColumns, Columns, TimedColumn, choose_columns
from maitre.workload.lengths import REASONS, Lengths, read_lengths
from maitre.workload.prefixes import infer_block_tokens, read_hashes
from maitre.workload.times import Times, read_durations, read_times

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from maitre.workload.tables import Table


class _Latencies(NamedTuple):
    seconds: NDArray[np.float64]
    """Shape (n,), NaN where a row has none."""
    form: str
    asked: bool


def read_requests(table: Table, columns: Columns, name: str) -> Workload:
    """Read a table's requests in order of arrival (rows with equal times keep their order).

    Args:
        table: the opened table.
        columns: what the caller says about its columns; the rest is recognised.
        name: the workload's name.

    Raises:
        InputError: a column is missing or unreadable, or no row is a usable request.
    """
    chosen = choose_columns(table.names, columns, table.source)
    frame = table.read(chosen.names)
    if frame.is_empty():
        raise InputError(f"{table.source}: a header, but no rows", "name a file that holds requests")
    return _keep_requests(frame, chosen, table.source, name)


def _keep_requests(frame: pl.DataFrame, chosen: ChosenColumns, source: str, name: str) -> Workload:
    prompt, output = read_lengths(frame[chosen.prompt]), read_lengths(frame[chosen.output])
    times = read_times(frame[chosen.time.name], chosen.time, source) if chosen.time else None
    latencies = _read_latencies(frame, chosen, times, output, source)
    reasons = _reasons(prompt, output, times, latencies)
    order = np.flatnonzero(reasons == "")
    if order.size == 0:
        raise InputError(f"{source}: no row is a usable request ({_tell(reasons)})", "check the columns' names")
    if times:
        order = order[np.argsort(times.ns[order], kind="stable")]
    hashes = _read_hashes(frame, chosen, order, prompt.tokens, source)
    return Workload(
        name=name,
        source=f"{source}: {_describe(chosen, times, latencies)}",
        prompt_tokens=prompt.tokens[order],
        output_tokens=output.tokens[order],
        # sorted, so that the differences fit 64 bits without a sign even where they pass 292 years
        arrival_s=(times.ns[order] - times.ns[order[0]]).view(np.uint64) / 1e9 if times else None,
        latency_s=latencies.seconds[order] if latencies and np.isfinite(latencies.seconds[order]).all() else None,
        prefix_hashes=hashes[0] if hashes else None,
        prefix_block_tokens=hashes[1] if hashes else None,
        num_dropped=_count(reasons),
    )


def _reasons(prompt: Lengths, output: Lengths, times: Times | None, latencies: _Latencies | None) -> NDArray[np.str_]:
    """Why each row is no usable request, empty where it is one; the first reason counts. Shape (n,)."""
    conditions, names = [], []
    for label, lengths in (("prompt_tokens", prompt), ("output_tokens", output)):
        conditions += [lengths.reason == code for code in range(1, len(REASONS))]
        names += [f"{label} {reason}" for reason in REASONS[1:]]
    if times:
        conditions.append(~times.valid)
        names.append("time missing or unreadable")
    if latencies and latencies.asked:
        conditions.append(np.isnan(latencies.seconds))
        names.append("latency missing or unreadable")
    return np.select(conditions, names, default="")


def _count(reasons: NDArray[np.str_]) -> dict[str, int]:
    names, counts = np.unique(reasons[reasons != ""], return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def _tell(reasons: NDArray[np.str_]) -> str:
    return ", ".join(f"{count} × {reason}" for reason, count in _count(reasons).items())


def _read_latencies(
    frame: pl.DataFrame, chosen: ChosenColumns, times: Times | None, output: Lengths, source: str
) -> _Latencies | None:
    """Latencies from their own column, or from start and end times that can be compared."""
    if chosen.latency:
        return _read_latency_column(frame, chosen.latency, output)
    if chosen.end is None or times is None:
        return None
    try:
        ends = read_times(frame[chosen.end.name], chosen.end, source)
    except InputError:  # a guessed column that holds no times is not what it seemed
        return None
    seconds = np.where(ends.valid & times.valid, (ends.ns - times.ns) / 1e9, np.nan)
    comparable = ends.form == times.form and ends.epoch == times.epoch
    return (
        _Latencies(np.where(seconds >= 0, seconds, np.nan), f"end times in {chosen.end.name}", asked=False)
        if comparable
        else None
    )


def _read_latency_column(frame: pl.DataFrame, chosen: TimedColumn, output: Lengths) -> _Latencies:
    unit = chosen.unit or "s"
    seconds = read_durations(frame[chosen.name], unit)
    known = np.isfinite(seconds) & (output.reason == 0)
    # without a unit: more than one second a token is no second but a millisecond (servers take 1 ms to 1 s a token)
    if chosen.unit is None and known.any() and np.median(seconds[known] / output.tokens[known]) > 1:
        unit, seconds = "ms", seconds / 1e3
    return _Latencies(seconds, f"latencies in {chosen.name} ({unit})", chosen.asked)


def _read_hashes(
    frame: pl.DataFrame, chosen: ChosenColumns, order: NDArray[np.intp], prompt: NDArray[np.int64], source: str
) -> tuple[tuple[tuple[int, ...], ...], int] | None:
    if chosen.hashes is None:
        return None
    hashes = read_hashes(frame[chosen.hashes], source)
    kept = tuple(hashes[row] for row in order.tolist())
    block_tokens = infer_block_tokens(kept, prompt[order])
    return (kept, block_tokens) if block_tokens else None


def _describe(chosen: ChosenColumns, times: Times | None, latencies: _Latencies | None) -> str:
    parts = [f"{chosen.layout}, lengths in {chosen.prompt} and {chosen.output}"]
    if chosen.time and times:
        parts.append(f"times in {chosen.time.name} ({times.form})")
    if latencies:
        parts.append(latencies.form)
    return ", ".join(parts)
