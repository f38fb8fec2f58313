"""The KV pool: what stays cached, what is evicted first, and what an admission costs."""

import numpy as np
import pytest

from maitre.records import Workload
from maitre.simulator.block_keys import assign_block_keys
from maitre.simulator.block_pool import BlockPool, PrefixCachingBlockPool
from maitre.simulator.sequence import Sequence

BLOCK = 4


def caching_pool(num_blocks, *, reuse_unhashed_first=True):
    return PrefixCachingBlockPool(num_blocks, BLOCK, 1000, reuse_unhashed_first=reuse_unhashed_first)


def prompt(keys, num_tokens=None, output_tokens=1):
    """A sequence whose full blocks have these keys."""
    num_tokens = num_tokens or len(keys) * BLOCK
    return Sequence(0, num_tokens, output_tokens, block_keys=np.array(keys, dtype=np.int64))


def admit(pool, sequence):
    """Give a sequence the blocks of its prompt; returns the tokens that were cached."""
    num_cached = pool.find_cached_tokens(sequence)
    pool.admit(sequence, sequence.num_tokens, num_cached)
    return num_cached


def serve(pool, sequence):
    """Admit and release; returns the tokens that were cached."""
    num_cached = admit(pool, sequence)
    pool.release(sequence, sequence.num_tokens, sequence.num_tokens)
    return num_cached


def test_without_caching_only_the_number_of_blocks_matters():
    pool = BlockPool(10, BLOCK)
    sequence = Sequence(0, prompt_tokens=9, output_tokens=8)
    assert pool.num_needed(sequence, 9, pool.find_cached_tokens(sequence)) == 3
    pool.admit(sequence, 9, 0)
    sequence.num_computed_tokens = 9
    pool.extend(sequence, 12)
    assert pool.num_free == 7
    pool.extend(sequence, 13)
    assert pool.num_free == 6
    pool.extend_by_one({sequence: None})
    pool.release(sequence, 17, 17)
    assert pool.num_free == 10


def test_a_prompt_finds_what_an_earlier_one_computed():
    pool = caching_pool(10)
    assert serve(pool, prompt([1, 2, 3])) == 0
    assert serve(pool, prompt([1, 2, 7, 8])) == 2 * BLOCK
    assert serve(pool, prompt([9, 2])) == 0


def test_the_last_token_is_computed_even_if_its_block_is_cached():
    pool = caching_pool(10)
    serve(pool, prompt([1, 2, 3]))
    assert pool.find_cached_tokens(prompt([1, 2, 3])) == 2 * BLOCK
    assert pool.find_cached_tokens(prompt([1, 2, 3], num_tokens=3 * BLOCK + 1)) == 3 * BLOCK


def test_running_sequences_share_blocks_and_idle_ones_cost_as_much_as_new_ones():
    pool = caching_pool(10)
    first, second = prompt([1, 2, 3]), prompt([1, 2, 4])
    admit(pool, first)
    assert pool.num_needed(second, 12, 8) == 1
    admit(pool, second)
    assert pool.num_free == 6
    pool.release(first, 12, 12)
    assert pool.num_free == 7
    pool.release(second, 12, 12)
    assert pool.num_free == 10
    assert pool.num_needed(prompt([1, 2, 5]), 12, 8) == 3


def test_a_prefix_outlives_its_continuation():
    pool = caching_pool(4)
    serve(pool, prompt([1, 2, 3]))
    serve(pool, prompt([8, 9]))
    assert pool.find_cached_tokens(prompt([1, 2, 3, 4])) == 2 * BLOCK


def test_the_least_recently_used_prompt_is_evicted_first():
    pool = caching_pool(4)
    serve(pool, prompt([1, 2]))
    serve(pool, prompt([5, 6]))
    serve(pool, prompt([1, 2], num_tokens=2 * BLOCK + 1))
    serve(pool, prompt([8]))
    assert pool.find_cached_tokens(prompt([1, 2, 3])) == 2 * BLOCK
    assert pool.find_cached_tokens(prompt([5, 6, 3])) == BLOCK


@pytest.mark.parametrize(("reuse_unhashed_first", "num_cached"), [(True, 2 * BLOCK), (False, BLOCK)])
def test_a_block_that_nobody_can_hit_is_reused_first_from_vllm_0_23_on(reuse_unhashed_first, num_cached):
    pool = caching_pool(3, reuse_unhashed_first=reuse_unhashed_first)
    serve(pool, prompt([1, 2]))
    half_a_block = prompt([], num_tokens=2)
    serve(pool, half_a_block)
    serve(pool, half_a_block)
    assert pool.find_cached_tokens(prompt([1, 2, 3])) == num_cached


def test_of_two_blocks_with_the_same_contents_the_one_that_is_left_answers():
    pool = caching_pool(5)
    first, twin = prompt([1, 2]), prompt([1, 2])
    pool.admit(first, 8, 0)
    pool.admit(twin, 8, 0)  # computed at the same time, so neither found the other
    pool.release(first, 8, 8)
    admit(pool, prompt([5, 6, 7]))
    assert pool.num_free == 0
    assert pool.find_cached_tokens(prompt([1, 2, 3])) == 2 * BLOCK


def test_when_both_are_handed_out_at_once_neither_answers():
    pool = caching_pool(4)
    twins = [prompt([1, 2]), prompt([1, 2])]
    for twin in twins:
        pool.admit(twin, 8, 0)
    for twin in twins:
        pool.release(twin, 8, 8)
    admit(pool, prompt([5, 6, 7, 8]))
    assert pool.find_cached_tokens(prompt([1, 2, 3])) == 0
    assert pool.find_cached_tokens(prompt([5, 6, 7, 8, 9])) == 4 * BLOCK


def test_generated_tokens_stay_cached_as_far_as_they_are_known():
    pool = caching_pool(10)
    sequence = prompt([1, 2], num_tokens=4, output_tokens=5)
    admit(pool, sequence)
    pool.extend_by_one({sequence: None})
    pool.release(sequence, 8, 7)  # the eighth token is still in flight
    sequence.num_output_tokens = 5
    assert pool.find_cached_tokens(sequence) == BLOCK
    admit(pool, sequence)
    pool.release(sequence, 8, 8)
    assert pool.find_cached_tokens(sequence) == 2 * BLOCK


def keys_of(prompts, outputs, hashes, chunk, block_size):
    workload = Workload(
        name="t",
        source="t",
        prompt_tokens=prompts,
        output_tokens=outputs,
        prefix_hashes=hashes,
        prefix_block_tokens=chunk,
    )
    return [keys.tolist() for keys in assign_block_keys(workload, block_size)]


def shared_blocks(prompts, hashes, chunk, block_size):
    """Blocks at the start that the second prompt has in common with the first."""
    first, second = keys_of(prompts, [1, 1], hashes, chunk, block_size)
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def test_without_hashes_every_block_is_unlike_any_other():
    first, second = keys_of([8, 8], [4, 5], None, None, 4)
    assert (len(first), len(second)) == (3, 3)
    assert not set(first) & set(second)


@pytest.mark.parametrize(
    ("prompts", "hashes", "chunk", "block_size", "num_shared"),
    [
        ([16, 16], [(1, 2), (1, 3)], 8, 4, 2),
        ([16, 16], [(1, 2), (1, 2)], 8, 4, 4),
        ([16, 16], [(1, 2), (3, 2)], 8, 4, 0),
        ([16, 13], [(1, 2), (1, 2)], 8, 4, 3),  # the second ends inside the chunk
        ([16, 16], [(1, 2, 3, 4), (1, 2, 3, 5)], 4, 8, 1),  # a block spans two chunks
        ([24, 24], [(1, 2), (1, 3)], 12, 8, 1),  # the second block begins in a chunk that is shared and ends behind it
        ([16, 16], [(1,), (1,)], 8, 4, 2),  # no hashes for the rest
    ],
)
def test_blocks_are_shared_as_far_as_the_hashes_agree_from_the_start(prompts, hashes, chunk, block_size, num_shared):
    assert shared_blocks(prompts, hashes, chunk, block_size) == num_shared


def test_a_hash_behind_another_beginning_is_another_prefix():
    first, second, third = keys_of([12, 12, 12], [1, 1, 1], [(1, 5, 7), (1, 6, 7), (1, 5, 7)], 4, 4)
    assert first == third
    assert second[0] == first[0]
    assert second[2] != first[2]
