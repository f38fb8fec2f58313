"""How many sequences fit where layers keep windows, chunks and states: against a count block by block."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import DoesNotFitError
from maitre.kv_budget import CacheFlags, LayerPages, kv_budget_from_blocks, max_seqs, max_seqs_of_length
from maitre.models import parse_attention_config

CONFIGS = json.loads(Path("tests/data/cache_layouts_vllm_0.32.0.json").read_text())["configs"]


def pool(name, blocks, block_size=16, **options):
    return kv_budget_from_blocks(blocks, block_size, parse_attention_config(CONFIGS[name], name), **options)


def pages(keeps, span, block_size, num_states=0):
    return LayerPages(
        keeps=keeps,
        span=span,
        num_layers=1,
        token_bytes=1,
        page_bytes=block_size,
        block_size=block_size,
        num_states=num_states,
    )


def blocks_one_by_one(page, num_tokens):
    """Give out a block when a token needs one, free those that no later token reads: what vLLM's managers do."""
    if page.keeps == "state":
        return page.num_states
    computed = num_tokens - 1
    read_from = {
        "all": 0,
        "window": computed - page.span + 1,
        "chunk": computed // page.span * page.span if page.span else 0,
    }
    unread = max(read_from[page.keeps], 0)
    return sum(1 for first in range(0, num_tokens, page.block_size) if first + page.block_size > unread)


@given(
    keeps=st.sampled_from(["all", "window", "chunk", "state"]),
    span=st.integers(1, 50),
    block_size=st.integers(1, 20),
    num_tokens=st.integers(1, 200),
)
def test_held_blocks_are_those_a_later_token_reads(keeps, span, block_size, num_tokens):
    page = pages(keeps, span, block_size, num_states=2)
    each = [blocks_one_by_one(page, n) for n in range(1, num_tokens + 1)]
    assert page.held(np.arange(1, num_tokens + 1)).tolist() == each
    assert page.held_up_to(np.array([num_tokens])).tolist() == [sum(each)]


@given(
    keeps=st.sampled_from(["window", "chunk", "state"]),
    span=st.integers(1, 50),
    block_size=st.integers(1, 20),
    num_tokens=st.integers(1, 200),
)
def test_no_decoding_sequence_holds_more_than_vllm_reserves(keeps, span, block_size, num_tokens):
    whole = span * block_size if keeps == "chunk" else span  # vLLM counts chunks of whole blocks
    page = pages(keeps, whole, block_size, num_states=2)
    assert page.held(np.array([num_tokens]))[0] <= page.reserved(num_tokens, 1)


def test_a_window_makes_long_sequences_cheap():
    windows, full = (pool("gpt-oss-120b", 10_000), pool("qwen3-30b-a3b", 10_000))
    prompt, output = np.array([100_000]), np.array([100])
    assert max_seqs(windows, prompt, output).full_length == pytest.approx(9_999 / (-(-100_099 // 16) + 9), rel=1e-3)
    assert max_seqs(full, prompt, output).full_length < max_seqs(windows, prompt, output).full_length * 1.01
    everywhere = pool("mistral-7b-v0.1", 10_000)
    few, many = (max_seqs(everywhere, np.array([n]), output).full_length for n in (8_000, 30_000))
    assert few == pytest.approx(many, rel=0.01)


def test_a_state_costs_a_short_sequence_as_much_as_a_long_one():
    """A public thread: blocks of 784 tokens, a request costs ⌈length / 784⌉ + 3 of them (vllm-project/vllm#40691)."""
    found = pool("qwen3-next-80b", 1485, 784, max_model_len=32768)
    assert found.block_size == 784
    assert max_seqs_of_length(found, 32768) == pytest.approx(1484 / 45)
    fit = max_seqs(found, np.array([1900]), np.array([100]))
    assert int(fit.full_length) == 1484 // 6
    assert found.kv_tokens == 1484 * 32768 // 45


def test_the_budget_of_a_pool_with_windows_says_what_is_fixed():
    found = pool("gpt-oss-120b", 1000, max_model_len=131072, in_flight_tokens=8192)
    assert found.kv_bytes_per_token == 18 * 2 * 8 * 64 * 2
    assert found.fixed_bytes_per_seq == 18 * 2048 * 16 * (-(-(127 + 8192) // 16) + 1)
    full = pool("gpt-oss-120b", 1000, flags=CacheFlags(disable_hybrid_kv_cache_manager=True))
    assert (full.fixed_bytes_per_seq, full.kv_tokens) == (0, 999 * 16)


def test_a_request_that_is_longer_than_a_grouped_pool_is_refused():
    with pytest.raises(DoesNotFitError, match="the pool has 99"):
        max_seqs(pool("gpt-oss-120b", 100), np.array([1500]), np.array([200]))


@given(st.integers(1, 5000), st.integers(1, 300), st.sampled_from(["gpt-oss-120b", "llama-4-scout", "gemma-4-31b"]))
def test_the_mean_footprint_is_the_mean_over_every_step(prompt, output, name):
    found = pool(name, 100_000)
    steps = found.layout.blocks_held(np.arange(prompt, prompt + output))
    fit = max_seqs(found, np.array([prompt]), np.array([output]))
    assert fit.mean_footprint == pytest.approx(99_999 / steps.mean())
