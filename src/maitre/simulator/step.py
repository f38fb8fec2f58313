"""What one step computes."""

from __future__ import annotations

from typing import NamedTuple

from maitre.simulator.sequence import Sequence

BOUND_BY = ("seqs", "token-budget", "kv-blocks", "requests")
SEQS, TOKEN_BUDGET, KV_BLOCKS, REQUESTS = range(len(BOUND_BY))
"""What keeps more work out of a step: full slots, a spent token budget, no free blocks, or nobody else to serve."""


class Step(NamedTuple):
    """What one step computed, and the queues after it was scheduled. Names and counts are those of the recordings."""

    num_decodes: int
    """Sequences that computed one token at or behind the end of their prompt."""
    decode_context_tokens: int
    """Sum of their contexts, the computed token included."""
    num_prefills: int
    prefill_tokens: int
    prefill_attention_pairs: int
    """Sum over chunks of n tokens behind `start`: n·start + n(n+1)/2 query–key pairs."""
    num_preemptions: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    bound_by: int
    """Index into `BOUND_BY`."""
    num_steady_decodes: int
    """Output tokens whose predecessor came out of the step before, without a preemption in between."""


class StepWork:
    """Prompt chunks of the step that is being scheduled, with their sums."""

    __slots__ = ("chunks", "new_tokens_beyond", "num_pairs", "num_single", "num_tokens", "single_context")

    def __init__(self) -> None:
        self.chunks: dict[Sequence, int] = {}
        self.num_tokens = 0
        self.num_pairs = 0
        self.num_single = 0
        """Chunks of one token behind the prompt: a decode for the model runner, and counted as one."""
        self.single_context = 0
        self.new_tokens_beyond = 0
        """New tokens of a request that were found in the prefix cache, less those computed that are not new to it."""

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """Compute the next `num_tokens` of a sequence."""
        self._book(sequence, num_tokens, 1)
        self.chunks[sequence] = num_tokens

    def remove(self, sequence: Sequence) -> int:
        """Take a chunk back; returns its tokens."""
        num_tokens = self.chunks.pop(sequence)
        self._book(sequence, num_tokens, -1)
        return num_tokens

    def _book(self, sequence: Sequence, num_tokens: int, sign: int) -> None:
        start = sequence.num_computed_tokens
        self.num_tokens += sign * num_tokens
        if start < sequence.num_reached_tokens:
            self.new_tokens_beyond -= sign * min(num_tokens, sequence.num_reached_tokens - start)
        if num_tokens == 1 and start >= sequence.prompt_tokens:
            self.num_single += sign
            self.single_context += sign * (start + 1)
        else:
            self.num_pairs += sign * (num_tokens * start + num_tokens * (num_tokens + 1) // 2)
