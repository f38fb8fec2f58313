"""The waiting queue under the priority policy; first come, first served needs only a deque."""

from __future__ import annotations

import heapq

from maitre.simulator.sequence import Sequence


class PriorityQueue:
    """Waiting requests, smallest (priority, arrival) first; a preempted one goes back to its own place."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __getitem__(self, position: int) -> Sequence:
        return self._heap[position][3]

    def append(self, sequence: Sequence) -> None:
        """Enter a request."""
        heapq.heappush(self._heap, (sequence.priority, sequence.arrival_s, sequence.index, sequence))

    appendleft = append

    def popleft(self) -> Sequence:
        """Take the most urgent request."""
        return heapq.heappop(self._heap)[3]

    def remove(self, sequence: Sequence) -> None:
        """Take a request out of the middle."""
        self._heap = [entry for entry in self._heap if entry[3] is not sequence]
        heapq.heapify(self._heap)
