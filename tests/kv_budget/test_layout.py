"""How the cache is laid out: against vLLM itself for many models, and what each flag changes."""

import json
from pathlib import Path

import pytest

from maitre.errors import UnsupportedError, UsageError
from maitre.kv_budget import CacheFlags, Speculation, kv_layout
from maitre.kv_budget.cache_bytes import state_bytes
from maitre.models import load_model, parse_attention_config

GOLDEN = json.loads(Path("tests/data/cache_layouts_vllm_0.32.0.json").read_text())


def model(name, **changes):
    return parse_attention_config(GOLDEN["configs"][name] | changes, name)


def layout(name, **flags):
    return kv_layout(model(name), CacheFlags(**flags))


@pytest.mark.parametrize("case", GOLDEN["layouts"], ids=lambda case: f"{case['model']} {sorted(case['flags'])}")
def test_blocks_groups_and_concurrency_are_vllms(case):
    found = layout(case["model"], **case["flags"])
    assert found.bytes_per_block == case["bytes_per_block"]
    assert sum(pages.num_groups for pages in found.pages) == case["num_groups"]
    request = found.blocks_reserved(case["max_model_len"], case["in_flight_tokens"])
    assert 80 * 2**30 // found.bytes_per_block / request == case["concurrency_80gib"]
    assert model(case["model"]).max_position_embeddings == case["max_model_len"]


@pytest.mark.parametrize(
    ("name", "kind", "per_token"),
    [
        ("qwen3-30b-a3b", "full", 48 * 2 * 4 * 128 * 2),
        ("deepseek-v2-lite", "mla", 27 * 576 * 2),
        ("gemma-3-27b", "sliding", 10 * 2 * 16 * 128 * 2),
        ("gemma-4-31b", "sliding", 10 * 2 * 4 * 512 * 2),
        ("mistral-7b-v0.1", "sliding", 0),
        ("llama-4-scout", "sliding", 12 * 2 * 8 * 128 * 2),
        ("qwen3-next-80b", "hybrid", 12 * 2 * 2 * 256 * 2),
        ("nemotron-h-8b", "hybrid", 4 * 2 * 8 * 128 * 2),
        ("jamba-1.5-mini", "hybrid", 4 * 2 * 8 * 128 * 2),
        ("falcon-h1-7b", "hybrid", 44 * 2 * 2 * 128 * 2),
        ("lfm2-1.2b", "hybrid", 6 * 2 * 8 * 64 * 2),
    ],
)
def test_only_layers_that_keep_all_grow(name, kind, per_token):
    found = layout(name)
    assert (found.kind, found.kv_bytes_per_token) == (kind, per_token)


def test_gemma_4_without_windows_costs_what_a_public_log_says():
    found = layout("gemma-4-31b", disable_hybrid_kv_cache_manager=True)
    assert (found.kv_bytes_per_token, found.kind) == (901_120, "sliding")


def test_a_recurrent_model_without_the_hybrid_manager_is_refused_as_vllm_does():
    with pytest.raises(UsageError, match="disable-hybrid-kv-cache-manager"):
        layout("nemotron-h-8b", disable_hybrid_kv_cache_manager=True)


def test_an_fp8_cache_halves_tokens_and_leaves_states_alone():
    half, whole = (layout("qwen3-next-80b", kv_cache_dtype=dtype) for dtype in ("fp8", "auto"))
    assert half.kv_bytes_per_token * 2 == whole.kv_bytes_per_token
    assert half.block_size == pytest.approx(2 * whole.block_size, rel=0.03)  # both rounded up to 16 tokens
    assert half.fixed_bytes_per_seq(8192) == pytest.approx(whole.fixed_bytes_per_seq(8192), rel=0.03)


def test_a_latent_is_the_same_on_every_gpu_and_a_state_is_shared_out():
    assert layout("deepseek-v2-lite", tensor_parallel_size=8) == layout("deepseek-v2-lite")
    one, two = (layout("qwen3-next-80b", tensor_parallel_size=tp) for tp in (1, 2))
    assert two.fixed_bytes_per_seq(262144) * 2 == pytest.approx(one.fixed_bytes_per_seq(262144), rel=0.03)
    (mamba,) = model("granite-4.0-h-small").states  # one group of Mamba-2: every GPU keeps a copy
    assert 4 * state_bytes(mamba, 4, 2) - state_bytes(mamba, 1, 2) == 3 * 2 * 128 * 3 * 2


def test_states_that_cannot_be_shared_out_are_refused():
    odd = model("qwen3-next-80b", linear_num_value_heads=30)
    with pytest.raises(UsageError, match="shared out evenly over 4"):
        kv_layout(odd, CacheFlags(tensor_parallel_size=4))


def test_sparse_attention_keeps_a_key_for_its_index():
    sparse = {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"}
    sparse |= {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64}
    found = {
        dtype: kv_layout(model("deepseek-v2-lite", **sparse), CacheFlags(kv_cache_dtype=dtype))
        for dtype in ("auto", "fp8")
    }
    assert found["auto"].kv_bytes_per_token == 27 * (576 * 2 + 132)
    assert found["fp8"].kv_bytes_per_token == 27 * (656 + 132)


def test_multi_token_prediction_adds_its_layers_only_when_it_is_on():
    plain = model("deepseek-v2-lite", num_nextn_predict_layers=1)
    assert kv_layout(plain, CacheFlags()).kv_bytes_per_token == 27 * 576 * 2
    on = CacheFlags(speculation=Speculation(method="mtp", num_speculative_tokens=2))
    assert kv_layout(plain, on).kv_bytes_per_token == 28 * 576 * 2
    with pytest.raises(UsageError, match="no layers for multi-token prediction"):
        kv_layout(model("deepseek-v2-lite"), on)
    with pytest.raises(UnsupportedError, match="MTP layers"):
        kv_layout(model("gpt-oss-120b", num_nextn_predict_layers=1), on)


def test_a_draft_model_brings_its_own_cache():
    draft, target = load_model("Qwen2.5-0.5B"), load_model("Qwen2.5-7B")
    flags = CacheFlags(speculation=Speculation(method="draft", num_speculative_tokens=4, draft_model=draft))
    alone = [kv_layout(one, CacheFlags()).kv_bytes_per_token for one in (draft, target)]
    assert kv_layout(target, flags).kv_bytes_per_token == sum(alone)
    assert kv_layout(target, flags).bytes_per_block == 16 * sum(alone)
    with pytest.raises(UsageError, match="draft"):
        kv_layout(target, CacheFlags(speculation=Speculation(method="draft", num_speculative_tokens=4)))


def test_more_tokens_in_flight_reserve_more_up_to_the_longest_sequence():
    found = layout("gpt-oss-120b")
    fixed = [found.fixed_bytes_per_seq(131072, tokens) for tokens in (1, 2048, 16384)]
    assert fixed == sorted(fixed)
    assert found.fixed_bytes_per_seq(4096, 10**6) == found.fixed_bytes_per_seq(4096, 10**7)
