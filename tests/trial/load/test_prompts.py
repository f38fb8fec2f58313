"""Prompts: content fresh for each run, the lengths and the prefixes of the workload."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import UsageError
from maitre.records import Workload
from maitre.trial.load import make_prompts
from maitre.trial.load.prompts import token_range

VOCAB = 32_000


def make_workload(prompt_tokens, hashes=None, chunk=None):
    outputs = [1] * len(prompt_tokens)
    return Workload(
        name="w", source="test", prompt_tokens=prompt_tokens, output_tokens=outputs, prefix_hashes=hashes,
        prefix_block_tokens=chunk,
    )  # fmt: skip


def num_common(one, other):
    length = min(len(one), len(other))
    differs = np.array(one[:length]) != np.array(other[:length])
    return int(differs.argmax()) if differs.any() else length


def test_the_same_run_has_the_same_prompts_and_another_run_has_others_of_the_same_lengths():
    workload = make_workload([700, 40, 700])
    first, again, other = (make_prompts(workload, VOCAB, 5, run) for run in (0, 0, 1))
    assert first == again
    assert [len(prompt) for prompt in first] == [len(prompt) for prompt in other] == [700, 40, 700]
    tokens = [np.concatenate(run) for run in (first, other)]
    assert np.mean(tokens[0] == tokens[1]) < 0.01
    assert make_prompts(workload, VOCAB, 6, 0) != first


def test_another_run_of_a_shared_prefix_shares_it_within_the_run_only():
    workload = make_workload([64, 64], ((1, 2), (1, 3)), 32)
    one, other = make_prompts(workload, VOCAB, 0, 0), make_prompts(workload, VOCAB, 0, 1)
    assert one[0][:32] == one[1][:32] != other[0][:32] == other[1][:32]


def test_prompts_without_prefixes_differ_in_their_first_token():
    prompts = make_prompts(make_workload([3] * 2000), VOCAB, 0, 0)
    assert len({prompt[0] for prompt in prompts}) == 2000


@given(st.data())
def test_prompts_agree_exactly_as_far_as_their_hashes_do(data):
    chunk = data.draw(st.integers(1, 8), "chunk")
    rows = data.draw(st.lists(st.lists(st.integers(0, 2), max_size=5).map(tuple), min_size=2, max_size=8), "hashes")
    lengths = [data.draw(st.integers(1, chunk * (len(row) + 1)), "length") for row in rows]
    prompts = make_prompts(make_workload(lengths, tuple(rows), chunk), VOCAB, 0, 0)
    assert [len(prompt) for prompt in prompts] == lengths
    for i, one in enumerate(rows):
        for j in range(i):
            shared = next((k for k, (a, b) in enumerate(zip(one, rows[j], strict=False)) if a != b), None)
            shared = min(len(one), len(rows[j])) if shared is None else shared
            assert num_common(prompts[i], prompts[j]) == min(shared * chunk, lengths[i], lengths[j])


@given(st.integers(1, 200_000))
def test_no_token_is_special_where_the_vocabulary_is_large_enough(vocab_size):
    allowed = token_range(vocab_size)
    assert 0 <= allowed.start < allowed.stop <= vocab_size
    assert len(allowed) >= vocab_size / 2
    if vocab_size >= 400:
        assert allowed.start >= 100
        assert allowed.stop <= vocab_size - 100


def test_all_tokens_are_in_the_range():
    tokens = np.concatenate(make_prompts(make_workload([20_000]), 600, 0, 0))
    assert (tokens.min(), tokens.max()) == (150, 449)


def test_a_vocabulary_of_one_token_still_makes_prompts():
    assert make_prompts(make_workload([3, 2]), 1, 0, 0) == [[0, 0, 0], [0, 0]]


def test_an_empty_vocabulary_is_refused():
    with pytest.raises(UsageError, match="vocabulary of 0"):
        make_prompts(make_workload([1]), 0, 0, 0)
