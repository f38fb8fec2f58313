"""What each engine step scheduled and how long it took, from `--enable-logging-iteration-details` (0.14 and later).

The one source that shows prefill and decode in the same step, and so whether long prompts make long steps. The time is
how long the engine waited for the step's result: with asynchronous scheduling or pipeline stages a part of the step.
Wording: `v1/engine/core.py` up to 0.27, `v1/metrics/loggers.py` later.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maitre.metric_series import FloatArray

IntArray = NDArray[np.int64]

MARK = " context requests, "
"""In every such line."""

_STEP = re.compile(
    r"(?:Engine (?P<engine>\d{1,6}): )?Iteration\((?P<index>\d{1,18})\): (?P<ctx_requests>\d{1,9}) context requests, "
    r"(?P<ctx_tokens>\d{1,9}) context tokens, (?P<gen_requests>\d{1,9}) generation requests, "
    r"(?P<gen_tokens>\d{1,9}) generation tokens, iteration elapsed time: (?P<elapsed>\d{1,12}(?:\.\d{1,9})?) ms"
    r"(?P<dummy> \(dummy\))?"
)


class IterationLine(NamedTuple):
    """One step of one engine."""

    engine: str
    """The number; empty where the line has none."""
    iteration_index: int
    num_context_requests: int
    """Requests in prefill, whole or a chunk of it."""
    num_context_tokens: int
    num_generation_requests: int
    """Those that have output tokens already (`v1/utils.py`, compute_iteration_details)."""
    num_generation_tokens: int
    """More than one a request are drafts of speculative decoding, or what is computed again after a preemption."""
    elapsed_ms: float
    is_dummy: bool
    """Run empty to keep step with the other engines of a data-parallel group."""


@dataclass(frozen=True, slots=True, eq=False)
class IterationTable:
    """Steps in the order of the log, each column of shape (n,); empty steps of data-parallel engines left out."""

    time_s: FloatArray
    """When the line was written, in seconds since the epoch; NaN where it has no time."""
    engine: NDArray[np.str_]
    num_context_requests: IntArray
    num_context_tokens: IntArray
    num_generation_requests: IntArray
    num_generation_tokens: IntArray
    elapsed_s: FloatArray

    def __len__(self) -> int:
        return len(self.elapsed_s)

    @property
    def num_recomputed_tokens(self) -> IntArray:
        """Tokens of preempted requests that are computed again, shape (n,): all that a log of V1 shows of preemptions.

        They are counted as generation. Where more than one token a request is the rule, as with speculative decoding,
        they cannot be told apart, and are 0.
        """
        more = np.maximum(self.num_generation_tokens - self.num_generation_requests, 0)
        decodes = self.num_generation_requests > 0
        return np.zeros_like(more) if decodes.any() and np.median(more[decodes]) > 0 else more

    def preemptions_at_least(self, engine: str) -> IntArray:
        """Preemptions of an engine so far, at each of its steps, shape (m,): runs of steps that compute tokens again.

        More where several requests are computed again in a row, and where the prefix cache still has what they lost.
        """
        again = self.num_recomputed_tokens[self.engine == engine] > 0
        begins: NDArray[np.bool_] = again & ~np.concatenate([[False], again[:-1]])
        return np.cumsum(begins, dtype=np.int64)

    @property
    def num_prefill_tokens(self) -> IntArray:
        """Tokens of prompts and of what is computed again, shape (n,)."""
        total: IntArray = self.num_context_tokens + self.num_recomputed_tokens
        return total

    @property
    def mixes(self) -> NDArray[np.bool_]:
        """Which steps have prefill, or prefill again, and decode in them, shape (n,)."""
        num_decodes = self.num_generation_requests - (self.num_recomputed_tokens > 0)
        return (self.num_prefill_tokens > 0) & (num_decodes > 0)


def parse_iteration(message: str) -> IterationLine | None:
    """Read a message, also with another logger's head before it; None if it is not about a step."""
    match = _STEP.search(message)
    if match is None:
        return None
    return IterationLine(
        engine=str(int(match["engine"])) if match["engine"] else "",
        iteration_index=int(match["index"]),
        num_context_requests=int(match["ctx_requests"]),
        num_context_tokens=int(match["ctx_tokens"]),
        num_generation_requests=int(match["gen_requests"]),
        num_generation_tokens=int(match["gen_tokens"]),
        elapsed_ms=float(match["elapsed"]),
        is_dummy=match["dummy"] is not None,
    )


def iteration_table(steps: Sequence[IterationLine], time_s: FloatArray) -> IterationTable:
    """Steps as columns.

    Args:
        steps: n of them.
        time_s: shape (n,).
    """
    real = np.array([not step.is_dummy for step in steps], dtype=np.bool_)
    kept = [step for step in steps if not step.is_dummy]
    return IterationTable(
        time_s=time_s[real],
        engine=np.array([step.engine for step in kept], dtype=np.str_),
        num_context_requests=np.array([step.num_context_requests for step in kept], dtype=np.int64),
        num_context_tokens=np.array([step.num_context_tokens for step in kept], dtype=np.int64),
        num_generation_requests=np.array([step.num_generation_requests for step in kept], dtype=np.int64),
        num_generation_tokens=np.array([step.num_generation_tokens for step in kept], dtype=np.int64),
        elapsed_s=np.array([step.elapsed_ms for step in kept], dtype=np.float64) / 1000,
    )
