"""One request as the scheduler sees it."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray


class Sequence:
    """A request on its way through the server.

    While it decodes, the sequence is kept in aggregate by `DecodeBatch` and `num_computed_tokens` and
    `num_output_tokens` stand still; `DecodeBatch.remove` brings them up to date.
    """

    __slots__ = (
        "arrival_s",
        "block_ids",
        "block_keys",
        "context_offset",
        "first_scheduled_step",
        "first_token_step",
        "index",
        "is_decoding",
        "is_running",
        "last_decode_tick",
        "last_token_step",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_hashed_blocks",
        "num_lost_tokens",
        "num_output_tokens",
        "num_preemptions",
        "num_reached_tokens",
        "num_recomputed_tokens",
        "order",
        "output_tokens",
        "priority",
        "prompt_tokens",
        "release_tick",
    )

    def __init__(
        self,
        index: int,
        prompt_tokens: int,
        output_tokens: int,
        arrival_s: float = 0.0,
        priority: int = 0,
        block_keys: NDArray[Any] | None = None,
    ) -> None:
        self.index = index
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.arrival_s = arrival_s
        self.priority = priority
        self.block_keys = block_keys
        self.block_ids: list[int] = []
        self.num_hashed_blocks = 0
        """Blocks at the start that are in the prefix cache."""
        self.num_computed_tokens = 0
        self.num_output_tokens = 0
        self.order = -1
        """Place in the running queue: grows with each admission."""
        self.is_running = False
        self.is_decoding = False
        self.context_offset = 0
        self.last_decode_tick = -1
        self.release_tick = -1
        """When the blocks are given back; −1 while tokens are still to be scheduled."""
        self.first_scheduled_step = -1
        self.first_token_step = -1
        self.last_token_step = -1
        self.num_preemptions = 0
        self.num_cached_tokens = 0
        self.num_lost_tokens = 0
        """Tokens that were computed when the last preemption took them."""
        self.num_reached_tokens = 0
        """The most tokens that were computed when any preemption took them."""
        self.num_recomputed_tokens = 0

    @property
    def num_tokens(self) -> int:
        """Prompt tokens and the output tokens generated so far: what has to be in the KV cache before the next one."""
        return self.prompt_tokens + self.num_output_tokens

    @property
    def is_ending(self) -> bool:
        """Its last token is being computed: it holds its slot and its blocks, but is not scheduled any more."""
        return self.release_tick >= 0
