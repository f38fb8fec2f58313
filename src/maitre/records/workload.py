"""Traffic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from maitre.records.record import FloatArray, IntArray, Record


class Workload(Record):
    """The n requests of a traffic sample: their lengths, and where known their arrivals and prefixes."""

    schema_version: Literal["maitre-workload-1"] = "maitre-workload-1"
    name: str
    source: str
    """Where the requests come from, in words."""
    prompt_tokens: IntArray
    """Shape (n,), each ≥ 1, in order of arrival."""
    output_tokens: IntArray
    """Shape (n,), each ≥ 1."""
    arrival_s: FloatArray | None = None
    """Shape (n,), seconds since the first arrival, non-decreasing; None when the source has no times."""
    latency_s: FloatArray | None = None
    """Shape (n,), measured end-to-end latency of each request in seconds, where the source has it."""
    ttft_s: FloatArray | None = None
    """Shape (n,), measured time to first token in seconds, where the source has it for every request."""
    prefix_hashes: tuple[tuple[int, ...], ...] | None = None
    """One tuple a request: a hash for each chunk of the prompt. Two requests share a prefix as far as these agree."""
    prefix_block_tokens: int | None = None
    """Tokens in one chunk of `prefix_hashes` (Mooncake: 512); the last chunk of a prompt may be shorter."""
    num_dropped: dict[str, int] = Field(default_factory=dict)
    """Rows of the source that are no usable request, counted by reason."""

    @property
    def num_requests(self) -> int:
        """How many requests."""
        return len(self.prompt_tokens)

    @property
    def total_tokens(self) -> int:
        """Prompt and output tokens of all requests."""
        return int(self.prompt_tokens.sum() + self.output_tokens.sum())

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        n = self.num_requests
        columns: dict[str, Sequence[Any] | NDArray[Any] | None] = {
            "output_tokens": self.output_tokens,
            "arrival_s": self.arrival_s,
            "latency_s": self.latency_s,
            "ttft_s": self.ttft_s,
            "prefix_hashes": self.prefix_hashes,
        }
        for name, column in columns.items():
            if column is not None and len(column) != n:
                raise ValueError(f"{name} has {len(column)} entries, prompt_tokens has {n}")
        if n == 0:
            raise ValueError("no requests")
        if int(self.prompt_tokens.min()) < 1 or int(self.output_tokens.min()) < 1:
            raise ValueError("every request needs at least one prompt token and one output token")
        if self.arrival_s is not None and np.any(np.diff(self.arrival_s) < 0):
            raise ValueError("arrival_s must not decrease")
        if (self.prefix_hashes is None) != (self.prefix_block_tokens is None):
            raise ValueError("prefix_hashes and prefix_block_tokens go together")
        return self
