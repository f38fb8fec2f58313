"""Who is next under the priority policy."""

from maitre.simulator.sequence import Sequence
from maitre.simulator.waiting_queue import PriorityQueue


def queue_of(*requests):
    """A queue of (priority, arrival) pairs, entered in this order."""
    queue = PriorityQueue()
    sequences = [Sequence(i, 1, 1, arrival_s, priority) for i, (priority, arrival_s) in enumerate(requests)]
    for sequence in sequences:
        queue.append(sequence)
    return queue, sequences


def drain(queue):
    return [queue.popleft().index for _ in range(len(queue))]


def test_the_smallest_number_goes_first_and_then_the_earliest_arrival():
    queue, _ = queue_of((1, 0.0), (0, 2.0), (0, 1.0), (-3, 9.0))
    assert drain(queue) == [3, 2, 1, 0]


def test_requests_alike_keep_their_order():
    queue, _ = queue_of((0, 0.0), (0, 0.0), (0, 0.0))
    assert drain(queue) == [0, 1, 2]


def test_a_preempted_request_does_not_overtake_a_more_urgent_one():
    queue, sequences = queue_of((5, 0.0), (1, 1.0))
    queue.remove(sequences[0])
    queue.appendleft(sequences[0])
    assert queue[0] is sequences[1]
    assert drain(queue) == [1, 0]


def test_a_request_can_leave_from_the_middle():
    queue, sequences = queue_of(*[(i % 3, float(i)) for i in range(9)])
    queue.remove(sequences[3])
    queue.remove(sequences[4])
    assert drain(queue) == [0, 6, 1, 7, 2, 5, 8]
