"""What all records have in common."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer


class Record(BaseModel):
    """A frozen pydantic model that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


def _frozen_array(dtype: type[np.number[Any]]) -> Any:
    """A validator that copies a flat list of numbers, none of them changed on the way, to a read-only array."""

    def convert(value: Any) -> Any:
        try:
            numbers = np.array(value)
        except (ValueError, TypeError, OverflowError):  # a ragged list, for one
            numbers = np.array(None)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iuf"):
            raise ValueError("a flat list of numbers was expected")
        if not np.isfinite(numbers).all():
            raise ValueError("NaN or infinity, a number was expected")
        if np.issubdtype(dtype, np.integer) and numbers.size:
            if (numbers != np.trunc(numbers)).any():
                raise ValueError("a fraction, whole numbers were expected")
            if not -(2**63) <= numbers.min() <= numbers.max() < 2**63:
                raise ValueError("a number of more than 64 bits")
        array: NDArray[Any] = numbers.astype(dtype)
        array.flags.writeable = False
        return array

    return convert


IntArray = Annotated[NDArray[np.int64], BeforeValidator(_frozen_array(np.int64)), PlainSerializer(lambda a: a.tolist())]
FloatArray = Annotated[
    NDArray[np.float64], BeforeValidator(_frozen_array(np.float64)), PlainSerializer(lambda a: a.tolist())
]
