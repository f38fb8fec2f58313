"""Public config.json files with the right answer; compared as cases/README.md says."""

import json

import pytest

from maitre.kv_budget import CacheFlags, kv_layout
from maitre.models import load_attention

NUM_CASES = 6


def matches(expected, got):
    if expected is None:
        return got is None
    if isinstance(expected, dict):
        if "any_of" in expected:
            return any(matches(entry, got) for entry in expected["any_of"])
        if "value" in expected:
            allowed = expected.get("abs", expected.get("rel", 0) * abs(expected["value"]))
            return abs(got - expected["value"]) <= allowed
        return expected.get("min", got) <= got <= expected.get("max", got)
    return got == expected


@pytest.fixture(scope="session")
def cases(shared_path):
    listed = json.loads((shared_path / "cases" / "cases.json").read_text())
    return {case["id"]: case for case in listed if case["kind"] == "model-config"}


@pytest.fixture
def read(shared_path, cases):
    def model_and_layout(case_id, **changes):
        case = cases[case_id]
        given = case["given"]
        flags = {
            "kv_cache_dtype": {1: "fp8", 2: "auto"}[given["kv_dtype_bytes"]],
            "tensor_parallel_size": given["tensor_parallel_size"],
            "disable_hybrid_kv_cache_manager": not given.get("hybrid_kv_cache_manager", True),
            "enable_prefix_caching": given.get("enable_prefix_caching", False),
        }
        model = load_attention(str(shared_path / "cases" / case["files"][0]))
        return case, model, kv_layout(model, CacheFlags(**flags | changes))

    return model_and_layout


def test_every_case_is_read_as_it_must_be(cases, read):
    assert len(cases) >= NUM_CASES
    for case_id in cases:
        case, model, layout = read(case_id)
        length = case["given"].get("max_model_len", model.max_position_embeddings)
        for in_flight in {1, case["given"].get("in_flight_tokens", case["given"].get("max_num_batched_tokens", 1))}:
            answer = {
                "kv_bytes_per_token": layout.kv_bytes_per_token,
                "fixed_bytes_per_seq": layout.fixed_bytes_per_seq(length, in_flight),
                "kind": layout.kind,
            }
            for key, expected in case["expect"].items():
                assert matches(expected, answer[key]), (case_id, key, answer[key])


@pytest.mark.parametrize("case_id", ["config-nested-text-chunked", "config-sliding-half-the-layers-fp8"])
def test_without_the_hybrid_manager_every_layer_is_charged_in_full(read, case_id):
    case, model, layout = read(case_id, disable_hybrid_kv_cache_manager=True)
    assert layout.kv_bytes_per_token == case["also"]["kv_bytes_per_token_if_all_layers_full"]
    assert layout.fixed_bytes_per_seq(model.max_position_embeddings) == 0


def test_a_hybrid_s_blocks_and_states(read):
    case, _, layout = read("config-gdn-hybrid-explicit-head-dim")
    _, _, cached = read("config-gdn-hybrid-explicit-head-dim", enable_prefix_caching=True)
    also = case["also"]
    assert layout.block_size == also["block_tokens"]
    assert matches(also["fixed_bytes_per_seq_with_prefix_caching"], cached.fixed_bytes_per_seq(262144))
    for found, key in ((layout, "bytes_for_262144_tokens"), (cached, "bytes_for_262144_tokens_with_prefix_caching")):
        assert matches(also[key], found.blocks_reserved(262144, 1) * found.bytes_per_block)


def test_a_window_s_pool_from_the_concurrency_line(read):
    case, _, layout = read("config-sliding-half-the-layers-fp8")
    request = layout.blocks_reserved(131072, 2048) * layout.bytes_per_block
    assert matches(case["also"]["pool_gib"], case["also"]["max_concurrency"] * request / 2**30)


def test_a_latent_packed_to_fp8(read):
    case, _, layout = read("config-mla-replicated-over-tp", kv_cache_dtype="fp8_ds_mla")
    assert layout.kv_bytes_per_token == case["also"]["kv_bytes_per_token_fp8_ds_mla"]
    _, _, half = read("config-mla-replicated-over-tp")
    assert matches(case["also"]["tokens_in_20_gib"], 20 * 2**30 / half.kv_bytes_per_token)


def test_few_key_value_heads_over_many_gpus(read):
    case, _, layout = read("config-kv-heads-below-tp")
    _, _, whole = read("config-kv-heads-below-tp", tensor_parallel_size=1)
    assert 4 * layout.kv_bytes_per_token == case["also"]["kv_bytes_per_token_all_gpus"]
    assert whole.kv_bytes_per_token == case["also"]["kv_bytes_per_token_at_tp1"]
