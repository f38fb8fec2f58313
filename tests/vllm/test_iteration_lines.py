"""Lines about single steps, written with --enable-logging-iteration-details."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.vllm.iteration_lines import iteration_table, parse_iteration

WORDS = (
    "Iteration(42): 2 context requests, 511 context tokens, 7 generation requests, 7 generation tokens, "
    "iteration elapsed time: 31.25 ms"
)
WORDINGS = {
    "0.14": WORDS,
    "0.28": f"Engine 003: {WORDS}, GPU KV cache usage: 12.5%",
    "0.28 with an encoder": f"Engine 003: {WORDS}, GPU KV cache usage: 12.5%, encoder inputs: 1, encoder output "
    "embeddings: 20",
    "another logger": f"vllm.v1.metrics - INFO - {WORDS}",
}


@pytest.mark.parametrize("message", WORDINGS.values(), ids=WORDINGS)
def test_every_wording_is_read(message):
    step = parse_iteration(message)
    assert step.engine == ("3" if "Engine" in message else "")
    assert step[1:] == (42, 2, 511, 7, 7, 31.25, False)


def test_empty_steps_that_keep_engines_together_are_left_out():
    messages = [WORDS, f"Engine 001: {WORDS} (dummy), GPU KV cache usage: 0.0%", WORDS]
    steps = [parse_iteration(message) for message in messages]
    assert [step.is_dummy for step in steps] == [False, True, False]
    table = iteration_table(steps, np.array([1.0, 2.0, 3.0]))
    assert len(table) == 2
    assert table.time_s.tolist() == [1, 3]
    assert table.elapsed_s.tolist() == [0.03125, 0.03125]


def test_a_step_mixes_when_it_has_prefill_and_decode():
    texts = [WORDS, WORDS.replace("7 generation", "0 generation"), WORDS.replace("511 context", "0 context")]
    table = iteration_table([parse_iteration(text) for text in texts], np.full(3, np.nan))
    assert table.mixes.tolist() == [True, False, False]


def table_of(*counts):
    """Steps of (context tokens, generation requests, generation tokens)."""
    texts = [
        f"Iteration(1): 1 context requests, {context} context tokens, {requests} generation requests, "
        f"{tokens} generation tokens, iteration elapsed time: 5.00 ms"
        for context, requests, tokens in counts
    ]
    return iteration_table([parse_iteration(text) for text in texts], np.full(len(texts), np.nan))


def test_what_is_computed_again_after_a_preemption_is_counted_as_generation_and_is_none():
    table = table_of((0, 8, 8), (0, 8, 8), (0, 8, 407), (0, 1, 512), (100, 7, 7))
    assert table.num_recomputed_tokens.tolist() == [0, 0, 399, 511, 0]
    assert table.num_prefill_tokens.tolist() == [0, 0, 399, 511, 100]
    assert table.mixes.tolist() == [False, False, True, False, True]


def test_runs_of_steps_that_compute_again_are_preemptions_at_least():
    table = table_of((0, 8, 8), (0, 8, 407), (0, 8, 300), (0, 8, 8), (0, 8, 500), (0, 8, 8), (0, 8, 8))
    assert table.preemptions_at_least("").tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert table.preemptions_at_least("1").tolist() == []


def test_drafts_of_speculative_decoding_are_not_computed_again():
    table = table_of((0, 8, 32), (0, 8, 32), (0, 7, 28), (64, 8, 31))
    assert table.num_recomputed_tokens.tolist() == [0, 0, 0, 0]
    assert table.mixes.tolist() == [False, False, False, True]


def test_no_steps_are_an_empty_table():
    assert len(iteration_table([], np.array([]))) == 0


@given(st.text(max_size=100), st.integers(0, len(WORDS) - 3))
def test_no_garbage_breaks_it(text, cut):
    assert parse_iteration(text) is None
    assert parse_iteration(WORDS[:cut] + text.replace("m", "")) is None
