"""What the layers of each family keep, by its config.json, and what is refused by name."""

import json
from pathlib import Path

import pytest

from maitre.errors import InputError, UnsupportedError
from maitre.models import (
    known_caches,
    known_families,
    known_models,
    load_attention,
    load_model,
    parse_attention_config,
)

CONFIGS = json.loads(Path("tests/data/cache_layouts_vllm_0.32.0.json").read_text())["configs"]

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}

LLAMA_4 = CONFIGS["llama-4-scout"]["text_config"]


def read(base=LLAMA, **changes):
    return parse_attention_config(base | changes, "config.json")


def kept(model):
    return [(layers.keeps, layers.span, layers.num_layers) for layers in model.attention]


def test_every_family_of_the_layouts_is_known():
    families = {(config.get("text_config") or config)["model_type"] for config in CONFIGS.values()}
    assert families <= set(known_families())


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("gemma-2-9b", [("all", 0, 21), ("window", 4096, 21)]),
        ("gemma-3-4b", [("all", 0, 5), ("window", 1024, 29)]),
        ("command-r7b", [("all", 0, 8), ("window", 4097, 24)]),
        ("llama-4-scout", [("all", 0, 12), ("chunk", 8192, 36)]),
        ("phi-3-mini-4k", [("window", 2047, 32)]),
    ],
)
def test_windows_and_chunks(name, layers):
    assert kept(read(CONFIGS[name])) == layers


def test_what_transformers_fills_in_is_filled_in():
    model = read(CONFIGS["gemma-3-4b"])
    assert (model.num_attention_heads, model.num_key_value_heads, model.head_dim) == (8, 4, 256)
    assert model.max_position_embeddings == 131072  # already scaled


def test_a_window_that_is_left_out_is_not_one_that_is_null():
    mistral = {key: value for key, value in CONFIGS["mistral-7b-v0.1"].items() if key != "sliding_window"}
    assert kept(read(mistral)) == [("window", 4096, 32)]
    assert kept(read(mistral, sliding_window=None)) == [("all", 0, 32)]
    assert kept(read(mistral, max_position_embeddings=4096)) == [("all", 0, 32)]


def test_a_window_in_all_layers_of_a_plain_model():
    assert kept(read(sliding_window=1024)) == [("window", 1024, 8)]
    assert kept(read(sliding_window=1024, model_type="smollm3")) == [("all", 0, 8)]


def test_global_layers_with_heads_of_their_own():
    full, windows = read(CONFIGS["gemma-4-31b"]).attention
    assert (full.num_key_value_heads, full.head_dim) == (4, 512)
    assert (windows.num_key_value_heads, windows.head_dim) == (16, 256)
    alike = read(CONFIGS["gemma-4-31b"] | {"attention_k_eq_v": False}).attention[0]
    assert (alike.num_key_value_heads, alike.head_dim) == (16, 512)


def test_layers_that_share_a_cache_keep_nothing():
    types = (["sliding_attention"] * 4 + ["full_attention"]) * 7
    config = LLAMA | {
        "model_type": "gemma3n_text",
        "num_hidden_layers": 35,
        "layer_types": types,
        "sliding_window": 512,
    }
    assert kept(read(config, num_kv_shared_layers=15)) == [("all", 0, 4), ("window", 512, 16)]
    with pytest.raises(UnsupportedError, match="num_kv_shared_layers"):
        read(num_kv_shared_layers=2)


def test_the_language_model_within_a_multimodal_one():
    nested = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "torch_dtype": "float16",
        "vision_config": {"num_hidden_layers": 99},
        "text_config": LLAMA | {"model_type": "mistral", "head_dim": 128},
    }
    model = read(nested)
    assert (model.num_hidden_layers, model.head_dim, model.dtype) == (8, 128, "float16")
    assert model.architecture == "Mistral3ForConditionalGeneration"


@pytest.mark.parametrize(
    ("name", "num_attention", "num_states"),
    [
        ("qwen3-next-80b", 12, 36),
        ("nemotron-h-8b", 4, 24),
        ("jamba-1.5-mini", 4, 28),
        ("granite-4.0-h-small", 4, 36),
        ("falcon-h1-7b", 44, 44),
        ("lfm2-1.2b", 6, 10),
    ],
)
def test_attention_between_recurrent_layers(name, num_attention, num_states):
    model = read(CONFIGS[name])
    assert model.kind == "hybrid"
    assert sum(layers.num_layers for layers in model.attention) == num_attention
    assert sum(layers.num_layers for layers in model.states) == num_states


def test_layer_types_say_the_same_as_the_interval():
    by_interval = read(CONFIGS["qwen3-next-80b"])
    types = (["linear_attention"] * 3 + ["full_attention"]) * 12
    assert read(CONFIGS["qwen3-next-80b"] | {"layer_types": types}).attention == by_interval.attention


def test_nemotron_s_later_spelling_of_its_pattern():
    config = {key: value for key, value in CONFIGS["nemotron-h-8b"].items() if key != "hybrid_override_pattern"}
    words = {"M": "linear_attention", "-": "mlp", "*": "full_attention"}
    listed = [words[letter] for letter in CONFIGS["nemotron-h-8b"]["hybrid_override_pattern"]]
    assert read(config | {"layers_block_type": listed}).states == read(CONFIGS["nemotron-h-8b"]).states
    with pytest.raises(InputError, match="hybrid_override_pattern is missing"):
        read(config)


def test_kimi_linear_mixes_a_latent_and_a_state():
    config = LLAMA | {
        "model_type": "kimi_linear",
        "num_hidden_layers": 4,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "linear_attn_config": {
            "full_attn_layers": [4],
            "kda_layers": [1, 2, 3],
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
        },
    }
    model = read(config)
    assert (model.kind, model.attention[0].head_dim, model.states[0].num_layers) == ("hybrid", 576, 3)
    assert model.states[0].state_dtype == "float32"
    with pytest.raises(InputError, match="kda_layers"):
        read(config, num_hidden_layers=5)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_type": "deepseek_v4"}, "deepseek_v4"),
        ({"model_type": None, "architectures": ["RwkvForCausalLM"]}, "RwkvForCausalLM"),
        ({"architectures": ["FancyForCausalLM"]}, "FancyForCausalLM"),
        ({"architectures": ["LlamaModel"]}, "LlamaModel"),
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size"),
        ({"use_cla": True}, "use_cla"),
        ({"is_encoder_decoder": True}, "encoder"),
        ({"layer_types": ["full_attention"] * 7 + ["linear_attention"]}, "linear_attention"),
        (
            {"model_type": "deepseek_v32", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk_freq": 4},
            "index_topk",
        ),
        ({"model_type": "nemotron_h"} | CONFIGS["nemotron-h-8b"] | {"sliding_window": 4096}, "sliding_window"),
        ({"model_type": "nemotron_h"} | CONFIGS["nemotron-h-8b"] | {"hybrid_override_pattern": "MX"}, "X"),
        (CONFIGS["granite-4.0-h-small"] | {"layer_types": ["mamba"] * 40}, "attention"),
    ],
)
def test_what_is_not_known_is_refused_by_name(changes, word):
    with pytest.raises(UnsupportedError, match=word):
        read(**changes)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("gpt-oss-120b", {"sliding_window": None}, "sliding_window is missing"),
        ("gpt-oss-120b", {"layer_types": ["full_attention"]}, "a list of 36 layers"),
        ("deepseek-v2-lite", {"kv_lora_rank": None}, "kv_lora_rank is missing"),
        ("qwen3-next-80b", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1, a kernel of at least 2"),
        ("lfm2-1.2b", {"conv_L_cache": 1}, "conv_L_cache is 1"),
        ("granite-4.0-h-small", {"mamba_n_heads": 10**9, "mamba_d_head": "auto"}, "mamba_n_heads is 1000000000"),
        ("qwen3-next-80b", {"linear_conv_kernel_dim": "4"}, "linear_conv_kernel_dim is '4'"),
        ("qwen3-next-80b", {"mamba_ssm_dtype": "int8"}, "mamba_ssm_dtype is 'int8'"),
        (
            "llama-4-scout",
            {"text_config": CONFIGS["llama-4-scout"]["text_config"] | {"no_rope_layers": [1]}},
            "no_rope",
        ),
        ("lfm2-1.2b", {"full_attn_idxs": "all"}, "full_attn_idxs is 'all'"),
    ],
)
def test_a_wrong_field_is_named(name, changes, said):
    with pytest.raises(InputError, match=said):
        read(CONFIGS[name] | changes)


def test_a_model_says_where_it_comes_from(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gpt-oss-120b"]))
    assert load_attention(str(tmp_path)).source == str(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("deepseek-v3", "mla"),
        ("gpt-oss-20b", "sliding"),
        ("gemma-3-27b-it", "sliding"),
        ("Llama-4-Scout-17B-16E-Instruct", "sliding"),
        ("Qwen3-Next-80B-A3B-Instruct", "hybrid"),
        ("qwen3-30b-a3b", "full"),
    ],
)
def test_shipped_models_of_every_kind(name, kind):
    assert load_attention(name).kind == kind
    with pytest.raises(UnsupportedError):
        load_model(name)


def test_every_shipped_cache_is_read():
    assert set(known_models()) < set(known_caches())
    for name in known_caches():
        assert load_attention(name).name == name
