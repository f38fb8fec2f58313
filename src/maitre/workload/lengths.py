"""Prompt and output lengths of a table's rows, and what is wrong with those that are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

MAX_TOKENS = 10_000_000
"""A longer prompt or output is taken as a mistake: ten times the longest context that models offer (1 M tokens)."""

REASONS = ("", "missing", "not a number", "negative", "over 10 million", "not whole", "zero")
"""Why a value is no length; the first stands for a good one."""

_MISSING = ("", "null", "none", "na", "n/a", "-")


class Lengths(NamedTuple):
    """Lengths of n rows."""

    tokens: NDArray[np.int64]
    """Shape (n,); 0 where a row has no usable length."""
    reason: NDArray[np.int8]
    """Shape (n,), index into `REASONS`."""


def read_lengths(column: pl.Series) -> Lengths:
    """Read a column of token counts: strings or numbers; `4808.0` is whole, true and false are no numbers."""
    import polars as pl  # noqa: PLC0415 - a quarter of a second, and only tables need it

    text = column.cast(pl.String, strict=False) if not column.dtype.is_nested() else pl.Series([""] * len(column))
    text = text.str.strip_chars()
    values = text.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    missing = text.is_null() | text.str.to_lowercase().is_in(_MISSING)
    wrong = (  # in the order of REASONS: the first that holds is told
        missing.to_numpy(),
        np.isnan(values),
        values < 0,
        values > MAX_TOKENS,
        values != np.floor(values),
        values == 0,
    )
    reason = np.select(wrong, list(range(1, len(REASONS))), default=0).astype(np.int8)
    return Lengths(np.where(reason == 0, values, 0).astype(np.int64), reason)
