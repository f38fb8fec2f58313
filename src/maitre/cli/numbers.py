"""Whole numbers on the command line: refused, not rounded, when they are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token
from cyclopts.validators import Number


def _read_whole(_type: Any, tokens: Sequence[Token]) -> int:
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        raise ValueError(f'"{text[:40]}" is no whole number.') from None


Whole = Annotated[int, Parameter(converter=_read_whole)]
"""Any whole number; the verb says which ones it takes."""

Count = Annotated[int, Parameter(converter=_read_whole, validator=Number(gte=1, lte=10**9))]
"""A number of things."""
