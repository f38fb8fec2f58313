"""A workload from whatever the user names: a stored file, a request table, a spec, or a reference workload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from maitre.errors import UsageError
from maitre.files import decode_text, read_content
from maitre.records import Workload
from maitre.workload.columns import Columns
from maitre.workload.langfuse import PREFIX, OnProgress, Selection, read_langfuse
from maitre.workload.reference import REFERENCES
from maitre.workload.store import parse_stored
from maitre.workload.synthetic import draw_workload, looks_like_spec, parse_spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PROMETHEUS = "prometheus:"
_HEAD_BYTES = 4096
"""A stored workload says so in its first bytes."""
_MAX_BYTES = 1 << 30
"""A longer text is refused, so that reading it does not fill the memory."""
_MAX_REQUESTS = 10_000_000


def load_workload(
    text: str,
    *,
    columns: Columns | None = None,
    num_requests: int | None = None,
    default_num_requests: int = 1000,
    seed: int = 0,
    selection: Selection | None = None,
    on_progress: OnProgress | None = None,
    max_model_len: int | None = None,
) -> Workload:
    """Load the workload that a user names.

    Args:
        text: path of a stored workload or of a request table (CSV, TSV, JSON, JSONL or Parquet, the text formats also
            gzipped), `-` for stdin, or a spec such as `lognormal:500:0.8:250:0.8` or `fixed:512:256`.
        columns: the table's columns; what is not named is recognised.
        num_requests: how many requests to draw from a spec, or at most to take from a file: the first ones in time, so
            that arrivals and shared prefixes stay true, or a random sample when there are no times.
        default_num_requests: how many to draw from a spec when `num_requests` is None.
        seed: of the draw, ≥ 0.
        selection: which observations of Langfuse count (`text` is `langfuse:https://HOST`, or one of its exports), or
            which series of `prometheus:https://HOST`.
        on_progress: told how far a long read from a server has come.
        max_model_len: in tokens, the longest request to draw from histograms.

    Raises:
        InputError: the file, a line or a column is wrong.
        UsageError: the spec or a number is wrong.
        SystemFailure: the disk or the permissions refuse.
    """
    if num_requests is not None and num_requests < 1:
        raise UsageError(f"{num_requests} requests are too few", "ask for 1 or more")
    if num_requests is not None and num_requests > _MAX_REQUESTS:
        raise UsageError(f"{num_requests:,} requests are too many", f"ask for {_MAX_REQUESTS:,} or fewer")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative", "write 0 or more")
    columns, selection = columns or Columns(), selection or Selection()
    if text.startswith(PREFIX) and not _exists(text):
        _refuse_columns(columns, text)
        return limit_requests(read_langfuse(text, selection, on_progress), num_requests, seed)
    num_drawn = default_num_requests if num_requests is None else num_requests
    if (address := prometheus_address(text)) is not None:
        _refuse_columns(columns, "a Prometheus")
        from maitre.workload.prometheus import draw_served, read_prometheus  # noqa: PLC0415 - aiohttp is slow to load

        return draw_served(read_prometheus(address, selection), num_drawn, seed, max_model_len)
    if looks_like_spec(text) and not _exists(text):
        _refuse_columns(columns, text)
        selection.refuse(text)
        return draw_workload(parse_spec(text), num_drawn, seed, name=text, source=f"spec {text}")
    if text in REFERENCES and not _exists(text):
        raise UsageError(f"{text}: no such file", f"the reference workload is --reference {text}")
    return limit_requests(_read_file(text, columns, selection, num_drawn, seed), num_requests, seed)


def prometheus_address(text: str) -> str | None:
    """What follows `prometheus:`; None where the text names something else."""
    return text.removeprefix(_PROMETHEUS) if text.startswith(_PROMETHEUS) and not _exists(text) else None


def limit_requests(workload: Workload, num_requests: int | None, seed: int) -> Workload:
    """At most `num_requests` requests of a workload; `source` then says which.

    Where times or prefixes are known these are the first ones, so that gaps and sharing stay true; elsewhere they are
    drawn at random without replacement and keep their order.
    """
    total = workload.num_requests
    if num_requests is None or num_requests >= total:
        return workload
    if workload.arrival_s is not None or workload.prefix_hashes is not None:
        rows: NDArray[np.intp] = np.arange(num_requests)
        how = f"the first {num_requests:,} of {total:,} requests"
    else:
        rows = np.sort(np.random.default_rng(seed).choice(total, size=num_requests, replace=False))
        how = f"{num_requests:,} of {total:,} requests, drawn at random without replacement (seed {seed})"
    hashes, arrival_s, latency_s = workload.prefix_hashes, workload.arrival_s, workload.latency_s
    return Workload(
        name=workload.name,
        source=f"{workload.source}; {how}",
        prompt_tokens=workload.prompt_tokens[rows],
        output_tokens=workload.output_tokens[rows],
        arrival_s=None if arrival_s is None else arrival_s[rows],
        latency_s=None if latency_s is None else latency_s[rows],
        ttft_s=None if workload.ttft_s is None else workload.ttft_s[rows],
        prefix_hashes=None if hashes is None else tuple(hashes[row] for row in rows.tolist()),
        prefix_block_tokens=workload.prefix_block_tokens,
        num_dropped=workload.num_dropped,
    )


def _read_file(text: str, columns: Columns, selection: Selection, num_drawn: int, seed: int) -> Workload:
    source = "stdin" if text == "-" else text
    content = read_content(text, source, max_bytes=_MAX_BYTES)
    if content.startswith(b"{") and b'"schema_version"' in content[:_HEAD_BYTES]:
        stored = parse_stored(decode_text(content, source), source)
        if stored is not None:
            _refuse_columns(columns, source)
            selection.refuse(source)
            return stored
    # polars loads in a quarter of a second, and only tables need it
    from maitre.workload.cleaning import read_requests  # noqa: PLC0415
    from maitre.workload.langfuse.exports import looks_like_export, read_export  # noqa: PLC0415
    from maitre.workload.servegen import draw_servegen, looks_like_servegen  # noqa: PLC0415
    from maitre.workload.sources import open_source  # noqa: PLC0415

    if columns == Columns() and looks_like_export(content):
        return read_export(content, source, selection, _name_of(source))
    selection.refuse(source)
    if columns == Columns() and looks_like_servegen(content):
        return draw_servegen(content, source, _name_of(source), num_drawn, seed)
    return read_requests(open_source(content, source), columns, _name_of(source))


def _refuse_columns(columns: Columns, source: str) -> None:
    if columns != Columns():
        raise UsageError(f"{source}: no table, so it has no columns", "leave the --…-column options out")


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except OSError:  # longer than any file name
        return False


def _name_of(source: str) -> str:
    """A file's name without its endings: `logs/chat.csv.gz` is `chat`."""
    return Path(source).name.partition(".")[0] or source
