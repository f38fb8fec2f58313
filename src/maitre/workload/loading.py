"""A workload from whatever the user names: a stored file, a request table, a spec, or a reference workload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from maitre.errors import UsageError
from maitre.files import decode_text, read_content
from maitre.records import Workload
from maitre.workload.columns import Columns
from maitre.workload.reference import REFERENCES
from maitre.workload.store import parse_stored
from maitre.workload.synthetic import draw_workload, looks_like_spec, parse_spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PARQUET = b"PAR1"
_MAX_REQUESTS = 10_000_000


def load_workload(
    text: str,
    *,
    columns: Columns | None = None,
    num_requests: int | None = None,
    default_num_requests: int = 1000,
    seed: int = 0,
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
    columns = columns or Columns()
    if looks_like_spec(text) and not _exists(text):
        _refuse_columns(columns, text)
        num_drawn = default_num_requests if num_requests is None else num_requests
        return draw_workload(parse_spec(text), num_drawn, seed, name=text, source=f"spec {text}")
    if text in REFERENCES and not _exists(text):
        raise UsageError(f"{text}: no such file", f"the reference workload is --reference {text}")
    return limit_requests(_read_file(text, columns), num_requests, seed)


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
        prefix_hashes=None if hashes is None else tuple(hashes[row] for row in rows.tolist()),
        prefix_block_tokens=workload.prefix_block_tokens,
        num_dropped=workload.num_dropped,
    )


def _read_file(text: str, columns: Columns) -> Workload:
    source = "stdin" if text == "-" else text
    content = read_content(text, source)
    if not content.startswith(_PARQUET):
        stored = parse_stored(decode_text(content, source), source)
        if stored is not None:
            _refuse_columns(columns, source)
            return stored
    # polars loads in a quarter of a second, and only tables need it
    from maitre.workload.cleaning import read_requests  # noqa: PLC0415
    from maitre.workload.tables import open_table  # noqa: PLC0415

    return read_requests(open_table(content, source), columns, _name_of(source))


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
