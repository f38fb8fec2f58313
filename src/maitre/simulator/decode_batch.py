"""The sequences that decode, kept in aggregate: a step costs the same for eight of them as for eight hundred."""

from __future__ import annotations

import heapq

from maitre.simulator.sequence import Sequence


class DecodeBatch:
    """Sequences that compute exactly one token in every step.

    A sequence that has `num_computed_tokens` = c before tick t has c − t = `context_offset` for as long as it decodes,
    so the batch needs only sums: the context of all is Σ offset + num · (tick + 1), and who needs a new block at a tick
    follows from the offset modulo the block size.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.num = 0
        self._offset_sum = 0
        self._by_phase: list[dict[Sequence, None]] = [{} for _ in range(block_size)]
        self._ends: list[tuple[int, int, Sequence]] = []

    def add(self, sequence: Sequence, tick: int) -> None:
        """Let a sequence decode from `tick` on, until its last output token."""
        sequence.is_decoding = True
        sequence.context_offset = sequence.num_computed_tokens - tick
        sequence.last_decode_tick = tick + sequence.output_tokens - sequence.num_output_tokens - 1
        self.num += 1
        self._offset_sum += sequence.context_offset
        self._by_phase[-sequence.context_offset % self.block_size][sequence] = None
        heapq.heappush(self._ends, (sequence.last_decode_tick, sequence.order, sequence))

    def remove(self, sequence: Sequence, tick: int) -> None:
        """Take a sequence out before `tick`, and bring its counts up to date."""
        sequence.is_decoding = False
        sequence.num_computed_tokens = sequence.context_offset + tick
        sequence.num_output_tokens = sequence.output_tokens - (sequence.last_decode_tick - tick + 1)
        sequence.last_decode_tick = -1
        self.num -= 1
        self._offset_sum -= sequence.context_offset
        del self._by_phase[-sequence.context_offset % self.block_size][sequence]

    def context_tokens(self, tick: int) -> int:
        """Context of all sequences at `tick`, the token that is being computed included."""
        return self._offset_sum + self.num * (tick + 1)

    def needing_block(self, tick: int) -> dict[Sequence, None]:
        """The sequences whose blocks are full: they need one more at `tick`."""
        return self._by_phase[tick % self.block_size]

    def next_end(self) -> int | None:
        """The first tick at which a sequence computes its last token; None when nobody decodes."""
        ends = self._ends
        while ends and (ends[0][2].last_decode_tick != ends[0][0] or ends[0][2].order != ends[0][1]):
            heapq.heappop(ends)  # removed, or added again since
        return ends[0][0] if ends else None

    def pop_ended(self, tick: int) -> list[Sequence]:
        """Take out the sequences whose last token is computed at `tick`, in the order of the running queue."""
        ended = []
        while self.next_end() == tick:
            sequence = heapq.heappop(self._ends)[2]
            self.remove(sequence, tick + 1)
            ended.append(sequence)
        return ended
