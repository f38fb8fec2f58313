"""Running sequences when tokens or blocks may run out: who comes first is served, who comes last is preempted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitre.simulator.sequence import Sequence
from maitre.simulator.step import StepWork

if TYPE_CHECKING:
    from maitre.simulator.scheduler import Scheduler


class ContendedPass:
    """One pass over the running queue in its order, as vLLM makes it in every step."""

    def __init__(self, scheduler: Scheduler, work: StepWork, threshold: int, returning: dict[Sequence, None]) -> None:
        """Prepare a pass.

        Args:
            scheduler: its queues and its pool change.
            work: takes the prompt chunks.
            threshold: the most prompt tokens of one sequence; 0 for no limit.
            returning: decodes that got no token in the step before.
        """
        self._scheduler = scheduler
        self._work = work
        self._threshold = threshold
        self._returning = returning
        self._budget = scheduler.rules.max_num_batched_tokens
        self._queue = [s for s in scheduler.running if not s.is_ending]
        self._served: dict[Sequence, None] = {}
        self._num_preemptions = 0

    def schedule(self) -> int:
        """Hand out tokens and blocks; who is left without is preempted or waits a step.

        Returns:
            The number of preemptions.
        """
        while len(self._served) < len(self._queue) and self._budget > 0:
            sequence = self._queue[len(self._served)]
            chunk = self._next_chunk(sequence)
            while sequence.is_running and not self._can_extend(sequence, chunk):
                self._make_room()
            if not sequence.is_running:
                break
            self._extend(sequence, chunk)
            self._served[sequence] = None
            self._budget -= chunk
        self._stall(self._queue[len(self._served) :])
        return self._num_preemptions

    def _next_chunk(self, sequence: Sequence) -> int:
        return 1 if sequence.is_decoding else self._scheduler.next_chunk(sequence, self._threshold, self._budget)

    def _needs_block(self, sequence: Sequence) -> bool:
        """Whether the blocks of a decoding sequence are full."""
        return (sequence.context_offset + self._scheduler.tick) % self._scheduler.rules.block_size == 0

    def _can_extend(self, sequence: Sequence, chunk: int) -> bool:
        if sequence.is_decoding:
            num_blocks = int(self._needs_block(sequence))
        else:
            num_blocks = self._scheduler.num_blocks_to_extend(sequence, chunk)
        return num_blocks <= self._scheduler.pool.num_free

    def _extend(self, sequence: Sequence, chunk: int) -> None:
        if not sequence.is_decoding:
            self._scheduler.pool.extend(sequence, sequence.num_computed_tokens + chunk)
            self._work.add(sequence, chunk)
        elif self._needs_block(sequence):
            self._scheduler.pool.extend_by_one([sequence])

    def _stall(self, unserved: list[Sequence]) -> None:
        """Decodes that got no token wait one tick."""
        scheduler = self._scheduler
        for sequence in unserved:
            if sequence.is_decoding:
                scheduler.decodes.remove(sequence, scheduler.tick)
                scheduler.stalled[sequence] = None
                if sequence not in self._returning:
                    sequence.last_token_step = scheduler.num_steps - 1

    def _make_room(self) -> None:
        """Preempt one sequence, under the priority policy perhaps one that was served: its tokens are free again."""
        victim = self._choose_victim()
        num_scheduled = 0
        if victim in self._served:
            del self._served[victim]
            num_scheduled = 1 if victim.is_decoding else self._work.remove(victim)
            self._budget += num_scheduled
        if victim in self._queue:
            self._queue.remove(victim)
        self._preempt(victim, num_scheduled)
        self._num_preemptions += 1

    def _choose_victim(self) -> Sequence:
        running = self._scheduler.running
        if self._scheduler.rules.priority_policy:
            return max(running, key=lambda s: (s.priority, s.arrival_s, s.index))
        return next(reversed(running))

    def _preempt(self, sequence: Sequence, num_scheduled: int) -> None:
        """Take slot and blocks from a running sequence; it waits in front and computes everything again.

        Full blocks stay cached as far as their tokens are known: with async scheduling the last output is in flight,
        unless the sequence got no token in the step before.
        """
        scheduler, num_in_flight = self._scheduler, 0
        if not sequence.is_decoding and not sequence.is_ending:
            scheduler.prefilling.remove(sequence)
        elif sequence not in self._returning:
            num_in_flight = scheduler.rules.in_flight_steps - 1
            sequence.last_token_step = scheduler.num_steps - 1
        if sequence.is_decoding:
            scheduler.decodes.remove(sequence, scheduler.tick)
        num_tokens = sequence.num_computed_tokens + num_scheduled
        scheduler.pool.release(sequence, num_tokens, num_tokens - num_in_flight)
        sequence.num_lost_tokens = sequence.num_computed_tokens
        sequence.num_reached_tokens = max(sequence.num_reached_tokens, sequence.num_computed_tokens)
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        sequence.is_running = False
        del scheduler.running[sequence]
        scheduler.waiting.appendleft(sequence)
