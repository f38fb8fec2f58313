"""How long a step takes: two regimes, one roofline knee, non-negative coefficients.

Symbols
    B     decodes of the step
    pad   the CUDA graph batch that B is padded to
    n     all tokens of the step, decodes and prompt tokens
    K     context tokens of the decodes
    Q     query–key pairs of the prompt chunks
    knee  tokens at which reading the weights takes as long as computing with them (GPU's FLOP/s over bytes/s,
          times half the bytes of a weight)

    decode-only step   a0 + b0·pad + c0·K + b1·max(pad − knee, 0)
    mixed step         a1 + b1·max(n, knee) + c1·K + d1·Q
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as SequenceOf
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from maitre.records import Record

COEFFICIENTS = ("a0", "b0", "c0", "a1", "b1", "c1", "d1")

Coefficient = Annotated[float, Field(ge=0)]


class StepTime(Record):
    """Seconds of a step from what it computes; the module says how."""

    a0: Coefficient
    """s a decode-only step: reading the weights once, launches, the host."""
    b0: Coefficient
    """s a padded decode."""
    c0: Coefficient
    """s a context token: reading its keys and values."""
    a1: Coefficient
    """s a mixed step, above the time of its tokens."""
    b1: Coefficient
    """s a token that is computed, not waited for by the weights."""
    c1: Coefficient
    """s a context token of the decodes in a mixed step."""
    d1: Coefficient
    """s a query–key pair."""
    knee: float = Field(ge=0)
    """Tokens, not fitted: it follows from the GPU."""
    graph_sizes: tuple[int, ...] = ()
    """Captured batch sizes in ascending order; a larger batch is not padded."""

    @property
    def coefficients(self) -> NDArray[np.float64]:
        """Shape (7,), in the order of `COEFFICIENTS`."""
        return np.array([getattr(self, name) for name in COEFFICIENTS])

    def with_coefficients(self, values: NDArray[np.float64]) -> StepTime:
        """The same with other coefficients, shape (7,)."""
        return self.model_copy(update=dict(zip(COEFFICIENTS, values.tolist(), strict=True)))

    def decode_s(self, num_decodes: int, context_tokens: int) -> float:
        """Seconds of a decode-only step."""
        position = bisect_left(self.graph_sizes, num_decodes)
        pad = self.graph_sizes[position] if position < len(self.graph_sizes) else num_decodes
        seconds = self.a0 + self.b0 * pad + self.c0 * context_tokens
        return seconds + self.b1 * (pad - self.knee) if pad > self.knee else seconds

    def mixed_s(self, num_decodes: int, context_tokens: int, prefill_tokens: int, pairs: int) -> float:
        """Seconds of a step with prompt tokens."""
        num_tokens = max(num_decodes + prefill_tokens, self.knee)
        return self.a1 + self.b1 * num_tokens + self.c1 * context_tokens + self.d1 * pairs

    def steps_s(self, columns: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Seconds of every step, shape (steps,), from the columns that `step_features` names."""
        seconds: NDArray[np.float64] = step_features(columns, self.knee, self.graph_sizes) @ self.coefficients
        return seconds


def step_features(columns: dict[str, NDArray[Any]], knee: float, graph_sizes: SequenceOf[int]) -> NDArray[np.float64]:
    """What each coefficient is multiplied by, shape (steps, 7).

    Args:
        columns: arrays of shape (steps,) named num_decodes, decode_context_tokens, num_prefills, prefill_tokens and
            prefill_attention_pairs, as in a recording or a replay.
        knee: tokens.
        graph_sizes: captured batch sizes, ascending.
    """
    num_decodes, context = columns["num_decodes"], columns["decode_context_tokens"]
    is_mixed = columns["num_prefills"] > 0
    pad = pad_to_graph(num_decodes, graph_sizes)
    num_tokens = np.maximum(num_decodes + columns["prefill_tokens"], knee)
    features = np.zeros((len(num_decodes), len(COEFFICIENTS)))
    features[:, 0] = ~is_mixed
    features[:, 1] = np.where(is_mixed, 0, pad)
    features[:, 2] = np.where(is_mixed, 0, context)
    features[:, 3] = is_mixed
    features[:, 4] = np.where(is_mixed, num_tokens, np.maximum(pad - knee, 0))
    features[:, 5] = np.where(is_mixed, context, 0)
    features[:, 6] = columns["prefill_attention_pairs"]
    return features


def pad_to_graph(num_decodes: NDArray[Any], graph_sizes: SequenceOf[int]) -> NDArray[Any]:
    """The captured batch size that each batch is padded to, shape kept; batches above the largest stay as they are."""
    if not graph_sizes:
        return num_decodes
    sizes = np.asarray(graph_sizes)
    position = np.searchsorted(sizes, num_decodes)
    return np.where(position < len(sizes), sizes[np.minimum(position, len(sizes) - 1)], num_decodes)
