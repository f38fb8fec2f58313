"""A batch of decoding sequences tells from sums what a walk over all of them would tell."""

from hypothesis import given
from hypothesis import strategies as st

from maitre.simulator.decode_batch import DecodeBatch
from maitre.simulator.sequence import Sequence


def decoding(batch, tick, *, prompt_tokens, output_tokens, order=0):
    """A sequence whose prompt was computed in the step before `tick`."""
    sequence = Sequence(order, prompt_tokens, output_tokens)
    sequence.order = order
    sequence.num_computed_tokens, sequence.num_output_tokens = prompt_tokens, 1
    batch.add(sequence, tick)
    return sequence


def test_the_context_grows_by_one_token_a_sequence_and_step():
    batch = DecodeBatch(block_size=16)
    decoding(batch, 5, prompt_tokens=100, output_tokens=50)
    assert batch.context_tokens(5) == 101
    decoding(batch, 7, prompt_tokens=10, output_tokens=50, order=1)
    assert batch.context_tokens(7) == 103 + 11
    assert batch.context_tokens(20) == 116 + 24


def test_a_sequence_needs_a_block_when_its_blocks_are_full():
    batch = DecodeBatch(block_size=16)
    full = decoding(batch, 0, prompt_tokens=32, output_tokens=99)
    later = decoding(batch, 0, prompt_tokens=30, output_tokens=99, order=1)
    needing = [list(batch.needing_block(tick)) for tick in range(20)]
    assert needing == [[full], [], [later], *[[]] * 13, [full], [], [later], []]


def test_a_sequence_ends_with_its_last_token_and_its_counts_are_right_then():
    batch = DecodeBatch(block_size=16)
    short = decoding(batch, 3, prompt_tokens=8, output_tokens=3)
    decoding(batch, 3, prompt_tokens=8, output_tokens=9, order=1)
    assert batch.next_end() == 4
    assert batch.pop_ended(3) == []
    assert batch.pop_ended(4) == [short]
    assert (short.num_output_tokens, short.num_computed_tokens, short.is_decoding) == (3, 10, False)
    assert (batch.num, batch.next_end()) == (1, 10)


def test_those_that_end_together_end_in_the_order_of_the_queue():
    batch = DecodeBatch(block_size=16)
    behind = decoding(batch, 0, prompt_tokens=5, output_tokens=4, order=2)
    before = decoding(batch, 1, prompt_tokens=9, output_tokens=3, order=1)
    assert batch.pop_ended(2) == [before, behind]


def test_a_sequence_that_pauses_ends_as_much_later():
    batch = DecodeBatch(block_size=4)
    sequence = decoding(batch, 0, prompt_tokens=6, output_tokens=5)
    batch.remove(sequence, 2)
    assert (sequence.num_computed_tokens, sequence.num_output_tokens) == (8, 3)
    assert (batch.num, batch.next_end(), batch.context_tokens(2)) == (0, None, 0)
    batch.add(sequence, 6)
    assert list(batch.needing_block(6)) == [sequence]
    assert batch.next_end() == 7


def test_nobody_decodes_in_an_empty_batch():
    batch = DecodeBatch(block_size=16)
    assert (batch.num, batch.context_tokens(9), batch.next_end(), batch.pop_ended(9)) == (0, 0, None, [])


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(1, 40), st.integers(2, 12), st.integers(0, 12)), min_size=1, max_size=12),
)
def test_sums_agree_with_counting_one_by_one(block_size, requests):
    batch = DecodeBatch(block_size)
    computed: dict[Sequence, int] = {}
    for tick in range(30):
        for order, (prompt, output, start) in enumerate(requests):
            if start == tick:
                computed[decoding(batch, tick, prompt_tokens=prompt, output_tokens=output, order=order)] = prompt
        assert batch.num == len(computed)
        assert batch.context_tokens(tick) == sum(n + 1 for n in computed.values())
        assert set(batch.needing_block(tick)) == {s for s, n in computed.items() if n % block_size == 0}
        for sequence in computed:
            computed[sequence] += 1
        ended = {s for s, n in computed.items() if n == s.prompt_tokens + s.output_tokens - 1}
        assert set(batch.pop_ended(tick)) == ended
        for sequence in ended:
            assert sequence.num_computed_tokens == computed.pop(sequence)
    assert not computed
