"""From a table's rows to requests: rows that are none are dropped and counted by reason, the rest is put in order."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from maitre.errors import InputError
from maitre.records import Workload
from maitre.workload.columns import ChosenColumns, Columns, TimedColumn, choose_columns
from maitre.workload.lengths import REASONS, Lengths, read_lengths
from maitre.workload.no_requests import NoRequestsError
from maitre.workload.prefixes import infer_block_tokens, read_hashes
from maitre.workload.row_rules import NO_MODEL_CALL, UNCOUNTED_HINT, UNCOUNTED_STREAM, read_rules, rule_columns
from maitre.workload.times import Times, read_durations, read_times, seconds_after

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        InputError: a column is missing or unreadable.
        NoRequestsError: no row is a usable request.
    """
    chosen = choose_columns(table.names, columns, table.source)
    if table.layout:
        chosen = chosen.model_copy(update={"layout": table.layout})
    frame = table.read(tuple(dict.fromkeys((*chosen.names, *rule_columns(table.names)))))
    if frame.is_empty() and table.num_skipped:
        raise _nothing_usable(table.source, table.num_skipped)
    if frame.is_empty():
        raise InputError(f"{table.source}: a header, but no rows", "name a file that holds requests")
    return _keep_requests(frame, chosen, table, name)


def _keep_requests(frame: pl.DataFrame, chosen: ChosenColumns, table: Table, name: str) -> Workload:
    source = table.source
    prompt, output = read_lengths(frame[chosen.prompt]), read_lengths(frame[chosen.output])
    ruled_out = read_rules(frame, chosen.output)
    wanted = np.ones(len(frame), dtype=np.bool_)
    for rows in ruled_out.values():
        wanted &= ~rows.to_numpy()
    times = read_times(frame[chosen.time.name], chosen.time, source, wanted) if chosen.time else None
    latencies = _read_latencies(frame, chosen, times, output, source)
    first = _read_first_tokens(frame, chosen, times, latencies, source)
    kept, num_dropped = _drop(ruled_out, prompt, output, times, latencies)
    num_dropped = dict(Counter(table.num_skipped) + Counter(num_dropped))
    order = np.flatnonzero(kept)
    if order.size == 0:
        raise _nothing_usable(source, num_dropped)
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
        ttft_s=first[order] if first is not None and np.isfinite(first[order]).all() else None,
        prefix_hashes=hashes[0] if hashes else None,
        prefix_block_tokens=hashes[1] if hashes else None,
        num_dropped=num_dropped,
    )


def _nothing_usable(source: str, num_dropped: dict[str, int]) -> NoRequestsError:
    told = ", ".join(f"{count} × {reason}" for reason, count in num_dropped.items())
    message = f"{source}: no row is a usable request ({told or 'no row is a model call'})"
    hint = UNCOUNTED_HINT if UNCOUNTED_STREAM in num_dropped else "check the columns' names"
    return NoRequestsError(message, hint, source=source, num_dropped=num_dropped)


def _drop(
    ruled_out: dict[str, pl.Series], prompt: Lengths, output: Lengths, times: Times | None, latencies: _Latencies | None
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Which rows are usable requests, shape (n,), and the others by reason; the first reason of a row counts."""
    kept = np.ones(len(prompt.tokens), dtype=np.bool_)
    num_dropped: dict[str, int] = {}
    for reason, rows in _faults(ruled_out, prompt, output, times, latencies):
        dropped = kept & rows
        count = int(np.count_nonzero(dropped))
        if count:
            kept &= ~dropped
            num_dropped[reason] = count
    num_dropped.pop(NO_MODEL_CALL, None)
    return kept, num_dropped


def _faults(
    ruled_out: dict[str, pl.Series], prompt: Lengths, output: Lengths, times: Times | None, latencies: _Latencies | None
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    for reason, rows in ruled_out.items():
        yield reason, rows.to_numpy()
    for label, lengths in (("prompt_tokens", prompt), ("output_tokens", output)):
        for code, reason in enumerate(REASONS[1:], 1):
            yield f"{label} {reason}", lengths.reason == code
    if times:
        yield "time missing or unreadable", ~times.valid
    if latencies and latencies.asked:
        yield "latency missing or unreadable", np.isnan(latencies.seconds)


def _read_latencies(
    frame: pl.DataFrame, chosen: ChosenColumns, times: Times | None, output: Lengths, source: str
) -> _Latencies | None:
    """Latencies from their own column, or from start and end times that can be compared."""
    if chosen.latency:
        return _read_latency_column(frame, chosen.latency, output)
    if chosen.end is None or times is None:
        return None
    seconds = seconds_after(times, frame[chosen.end.name], chosen.end, source)
    return None if seconds is None else _Latencies(seconds, f"end times in {chosen.end.name}", asked=False)


def _read_first_tokens(
    frame: pl.DataFrame, chosen: ChosenColumns, times: Times | None, latencies: _Latencies | None, source: str
) -> NDArray[np.float64] | None:
    """Times to first token in seconds, shape (n,), NaN where a row has none.

    Gateways book an answer that was not streamed as if its first token came with its last, which is no time to first
    token. A duration without a unit is in seconds, or in milliseconds where seconds were more than the whole latency;
    without latencies it is not known.
    """
    if chosen.ttft is not None:
        seconds = read_durations(frame[chosen.ttft.name], chosen.ttft.unit or "s")
        if chosen.ttft.unit is not None:
            return seconds
        known = np.isfinite(seconds) & (np.isfinite(latencies.seconds) if latencies else False)
        if latencies is None or not known.any():
            return None
        return seconds / 1e3 if np.median(seconds[known] - latencies.seconds[known]) > 0 else seconds
    if chosen.first is None or times is None:
        return None
    after = seconds_after(times, frame[chosen.first.name], chosen.first, source)
    return after if after is None or latencies is None else np.where(after < latencies.seconds, after, np.nan)


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
