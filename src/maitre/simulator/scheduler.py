"""vLLM V1's scheduler (`v1/core/sched/scheduler.py`, 0.9 to 0.33), exact for text requests of known output length.

A *tick* is one call of `schedule()`; a *step* is a tick that computed something. With async scheduling the output of a
tick is seen two ticks later, so a sequence that computed its last token still holds its slot and blocks for one tick.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter

from maitre.errors import DoesNotFitError
from maitre.simulator.block_pool import KvPool
from maitre.simulator.contention import ContendedPass
from maitre.simulator.decode_batch import DecodeBatch
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.sequence import Sequence
from maitre.simulator.step import KV_BLOCKS, REQUESTS, SEQS, TOKEN_BUDGET, Step, StepWork
from maitre.simulator.waiting_queue import PriorityQueue


class Scheduler:
    """The queues and their one method, `schedule`. A replay drives it and owns the time."""

    def __init__(self, rules: SchedulerRules, pool: KvPool) -> None:
        self.rules = rules
        self.pool = pool
        self.tick = 0
        self.num_steps = 0
        self.waiting: deque[Sequence] | PriorityQueue = PriorityQueue() if rules.priority_policy else deque()
        self.running: dict[Sequence, None] = {}
        """In the order of admission."""
        self.prefilling: list[Sequence] = []
        """Those of `running` that have not computed all their tokens, in the same order."""
        self.decodes = DecodeBatch(rules.block_size)
        self.token_gaps: list[tuple[int, int]] = []
        """Steps of two consecutive tokens of one sequence with a preemption or a step without a token in between."""
        self.new_tokens_beyond: list[tuple[int, int]] = []
        """Steps, and how many more tokens than computed were new to their requests: those from the prefix cache, less
        those computed again after a preemption."""
        self.stalled: dict[Sequence, None] = {}
        """Decodes that got no token in the last step; their `last_token_step` is up to date."""
        self._can_admit = True
        self._ending: deque[Sequence] = deque()
        self._num_admissions = 0

    @property
    def has_requests(self) -> bool:
        """Somebody waits or runs."""
        return bool(self.running or self.waiting)

    def add_request(self, sequence: Sequence) -> None:
        """Put a request that has arrived into the waiting queue.

        Raises:
            DoesNotFitError: it can never run, because its KV cache alone is larger than the pool.
        """
        num_tokens = sequence.prompt_tokens + sequence.output_tokens - 1
        if -(-num_tokens // self.rules.block_size) > self.rules.num_usable_blocks:
            raise DoesNotFitError(
                f"request {sequence.index} ({sequence.prompt_tokens} prompt, {sequence.output_tokens} output tokens) "
                f"is larger than the KV pool of {self.rules.num_usable_blocks * self.rules.block_size} tokens",
                "give the pool more memory, or leave such requests out of the workload",
            )
        self.waiting.append(sequence)
        self._can_admit = True

    # one tick

    def schedule(self) -> Step | None:
        """Decide what the next step computes; None when everybody waits for output that is still in flight."""
        tick = self.tick
        self._release_ended(tick)
        threshold = self._long_prefill_threshold()
        work = StepWork()
        returning, self.stalled = self.stalled, {}
        if self._order_matters(tick, threshold):
            num_preemptions = ContendedPass(self, work, threshold, returning).schedule()
        else:
            num_preemptions = 0
            self._schedule_running(tick, threshold, work)
        num_decodes, context = self.decodes.num, self.decodes.context_tokens(tick)
        budget = self.rules.max_num_batched_tokens - num_decodes - work.num_tokens
        self._can_admit = bool(num_preemptions)
        if not num_preemptions:
            budget = self._admit(budget, threshold, work)
        step = None
        if num_decodes or work.chunks:
            num_returned = self._book_returned(returning)
            bound_by = self._bound_by(budget, num_preemptions)
            step = self._describe(num_decodes, num_returned, context, work, num_preemptions, bound_by)
            self._advance(tick, work)
            if work.new_tokens_beyond:
                self.new_tokens_beyond.append((self.num_steps, work.new_tokens_beyond))
            self.num_steps += 1
        for sequence in self.stalled:
            self.decodes.add(sequence, tick + 1)
        self.tick += 1
        return step

    @property
    def num_steady_steps(self) -> int:
        """How many of the next steps are alike as long as nobody arrives and blocks are free: the same ones decode."""
        if self.prefilling or self.stalled or self._can_admit or not self.decodes.num:
            return 0
        last = self.decodes.next_end()
        assert last is not None
        if self._ending:
            last = min(last, self._ending[0].release_tick)
        return last - self.tick

    def schedule_steady(self) -> Step | None:
        """The next step, if it is one of `num_steady_steps` and its blocks are free: `schedule` without the search."""
        tick, decodes, pool = self.tick, self.decodes, self.pool
        needing = decodes.needing_block(tick)
        if needing:
            if len(needing) > pool.num_free:
                return None
            pool.extend_by_one(needing)
        self.tick = tick + 1
        self.num_steps += 1
        bound_by = self._bound_by(self.rules.max_num_batched_tokens - decodes.num, 0)
        num, context = decodes.num, decodes.context_tokens(tick)
        return Step(
            num, context, 0, 0, 0, 0, len(self.running), len(self.waiting), pool.num_free, bound_by, num
        )  # fmt: skip

    # running sequences

    def _order_matters(self, tick: int, threshold: int) -> bool:
        """Whether tokens or blocks may run out among the running ones, so that who is first in the queue matters."""
        num_tokens = self.decodes.num
        num_blocks = len(self.decodes.needing_block(tick))
        budget = self.rules.max_num_batched_tokens
        for sequence in self.prefilling:
            chunk = sequence.num_tokens - sequence.num_computed_tokens
            if threshold:
                chunk = min(chunk, threshold)
            elif num_tokens + chunk > budget:
                chunk = budget - num_tokens  # without a threshold the only partial prefill is last in the queue
            num_tokens += chunk
            num_blocks += self.num_blocks_to_extend(sequence, chunk)
        return num_blocks > self.pool.num_free or num_tokens > budget

    def num_blocks_to_extend(self, sequence: Sequence, chunk: int) -> int:
        """New blocks that a prefilling sequence needs for its next `chunk` tokens."""
        size = self.rules.block_size
        return -(-(sequence.num_computed_tokens + chunk) // size) + (-sequence.num_computed_tokens // size)

    def _schedule_running(self, tick: int, threshold: int, work: StepWork) -> None:
        """Everybody gets what they ask for."""
        needing = self.decodes.needing_block(tick)
        if needing:
            self.pool.extend_by_one(needing)
        budget = self.rules.max_num_batched_tokens - self.decodes.num
        for sequence in self.prefilling:
            if budget == 0:
                break
            chunk = self.next_chunk(sequence, threshold, budget)
            self.pool.extend(sequence, sequence.num_computed_tokens + chunk)
            work.add(sequence, chunk)
            budget -= chunk

    def next_chunk(self, sequence: Sequence, threshold: int, budget: int) -> int:
        """Tokens that a prefilling sequence computes next."""
        chunk = sequence.num_tokens - sequence.num_computed_tokens
        return min(chunk, threshold or chunk, budget)

    # waiting requests

    def _admit(self, budget: int, threshold: int, work: StepWork) -> int:
        """Move requests from the waiting queue into the step. Returns the token budget that is left."""
        rules, pool = self.rules, self.pool
        while budget > 0 and self.waiting and len(self.running) < rules.max_num_seqs:
            sequence = self.waiting[0]
            num_cached = pool.find_cached_tokens(sequence)
            chunk = sequence.num_tokens - num_cached
            chunk = min(chunk, threshold or chunk, budget)
            watermark = int(rules.watermark * rules.num_gpu_blocks) if self.running else 0
            must_fit = sequence.num_tokens if rules.whole_prompt_gate else num_cached + chunk
            if pool.num_needed(sequence, must_fit, num_cached) + watermark > pool.num_free:
                return budget
            self.waiting.popleft()
            pool.admit(sequence, num_cached + chunk, num_cached)
            self._start(sequence, num_cached)
            if num_cached > sequence.num_reached_tokens:
                work.new_tokens_beyond += num_cached - sequence.num_reached_tokens
            work.add(sequence, chunk)
            budget -= chunk
        self._can_admit = bool(self.waiting) and len(self.running) < rules.max_num_seqs
        return budget

    def _start(self, sequence: Sequence, num_cached_tokens: int) -> None:
        sequence.num_computed_tokens = num_cached_tokens
        if sequence.first_scheduled_step < 0:
            sequence.first_scheduled_step = self.num_steps
            sequence.num_cached_tokens = num_cached_tokens
        sequence.num_recomputed_tokens += max(sequence.num_lost_tokens - num_cached_tokens, 0)
        sequence.order = self._num_admissions
        self._num_admissions += 1
        sequence.is_running = True
        self.running[sequence] = None
        self.prefilling.append(sequence)

    def _long_prefill_threshold(self) -> int:
        """The most prompt tokens that one request may compute in a step; 0 for no limit."""
        is_alone = len(self.running) + len(self.waiting) <= 1
        return 0 if self.rules.exempt_lone_request and is_alone else self.rules.long_prefill_token_threshold

    # after the decision

    def _book_returned(self, returning: dict[Sequence, None]) -> int:
        """Sequences that decode again after steps without a token. Returns their number."""
        returned = [s for s in returning if s.is_decoding and s.last_token_step < self.num_steps - 1]
        self.token_gaps += [(s.last_token_step, self.num_steps) for s in returned]
        return len(returned)

    def _describe(
        self, num_decodes: int, num_returned: int, context: int, work: StepWork, num_preemptions: int, bound_by: int
    ) -> Step:
        return Step(
            num_decodes + work.num_single,
            context + work.single_context,
            len(work.chunks) - work.num_single,
            work.num_tokens - work.num_single,
            work.num_pairs,
            num_preemptions,
            len(self.running),
            len(self.waiting),
            self.pool.num_free,
            bound_by,
            num_decodes - num_returned,
        )

    def _bound_by(self, budget_left: int, num_preemptions: int) -> int:
        if num_preemptions:
            return KV_BLOCKS
        if not self.waiting and not self.prefilling:
            return REQUESTS
        if budget_left == 0:
            return TOKEN_BUDGET
        if not self.waiting:
            return REQUESTS
        return SEQS if len(self.running) >= self.rules.max_num_seqs else KV_BLOCKS

    def _advance(self, tick: int, work: StepWork) -> None:
        """Book the tokens: who is through with its prompt decodes next, who computed its last token ends."""
        ended = self.decodes.pop_ended(tick)
        for sequence, chunk in work.chunks.items():
            sequence.num_computed_tokens += chunk
            if sequence.num_computed_tokens < sequence.num_tokens:
                continue
            self.prefilling.remove(sequence)
            self._book_first_token(sequence)
            if sequence.num_output_tokens == sequence.output_tokens:
                ended.append(sequence)
            else:
                self.decodes.add(sequence, tick + 1)
        ended.sort(key=_by_order)
        for sequence in ended:
            sequence.last_token_step = self.num_steps
            sequence.release_tick = tick + self.rules.in_flight_steps
            self._ending.append(sequence)

    def _book_first_token(self, sequence: Sequence) -> None:
        if sequence.first_token_step < 0:
            sequence.first_token_step = self.num_steps
        else:  # it was preempted, and goes on after a gap
            self.token_gaps.append((sequence.last_token_step, self.num_steps))
        sequence.last_token_step = self.num_steps
        sequence.num_output_tokens += 1

    def _release_ended(self, tick: int) -> None:
        """The last tokens are out: slots and blocks are free again."""
        while self._ending and self._ending[0].release_tick <= tick:
            sequence = self._ending.popleft()
            if sequence.is_running:
                del self.running[sequence]
                self.pool.release(sequence, sequence.num_computed_tokens, sequence.num_computed_tokens)
            else:  # preempted while its last token was in flight
                self.waiting.remove(sequence)


_by_order = attrgetter("order")
