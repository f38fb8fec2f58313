"""Models: parameter counts against the published ones, weight files, and what is refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import InputError, UnsupportedError, UsageError
from maitre.models import known_models, load_attention, load_model, parse_model_config

PUBLISHED_PARAMETERS = {  # the number that Hugging Face shows for the safetensors files, shared weights counted once
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mistral-Small-24B-2501": 23_572_403_200,
    "microsoft/phi-4": 14_659_507_200,
}

QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED_PARAMETERS.items())
def test_parameter_counts_are_the_published_ones(name, parameters):
    assert load_model(name).num_parameters == parameters


def test_every_shipped_model_loads():
    assert len(known_models()) > 20
    for name in known_models():
        model = load_model(name)
        assert model.num_active_parameters == model.num_parameters
        assert model.weight_bytes == 2 * model.num_parameters
        assert model.num_matmul_parameters <= model.num_parameters


def test_matmul_parameters_leave_the_input_embedding_out():
    model = load_model("Qwen2.5-14B")
    biases_and_norms = 48 * (7168 + 2 * 5120) + 5120
    assert model.num_matmul_parameters == model.num_parameters - 152064 * 5120 - biases_and_norms


@pytest.mark.parametrize("text", ["qwen2.5-14b", "Qwen/Qwen2.5-14B-Instruct", "QWEN2.5 14B", "qwen2.5-14b-instruct"])
def test_spelling_does_not_matter(text):
    assert load_model(text).name == "Qwen/Qwen2.5-14B"


def test_an_unknown_name_gets_the_nearest_ones_and_the_way_out():
    with pytest.raises(UsageError, match=r"Qwen2\.5-13B") as caught:
        load_model("Qwen2.5-13B")
    assert "Qwen/Qwen2.5-1" in caught.value.hint
    assert "directory" in caught.value.hint


def test_example_directory_is_the_shipped_model():
    example, shipped = load_model("examples/qwen2.5-14b"), load_model("Qwen2.5-14B")
    apart = {"name", "source"}
    assert example.model_dump(exclude=apart) == shipped.model_dump(exclude=apart)


def write(directory: Path, config: dict, **files: object) -> str:
    (directory / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    return str(directory)


def test_a_checkpoint_with_a_copy_of_tied_weights_counts_them_once(tmp_path):
    tied = QWEN | {"tie_word_embeddings": True}
    index = {"metadata": {"total_size": 2 * 7_615_616_512}}
    model = load_model(write(tmp_path, tied, **{"model.safetensors.index.json": index}))
    assert model.weight_bytes == 2 * (7_615_616_512 - 152064 * 3584)
    assert "checked with metadata.total_size" in model.weight_source


def test_missing_weight_files_are_noticed(tmp_path):
    index = {"metadata": {"total_size": 4_000_000_000}}
    path = write(tmp_path, QWEN, **{"model.safetensors.index.json": index})
    with pytest.raises(InputError, match="weight files hold 4,000,000,000 B"):
        load_model(path)


def test_quantized_weights_take_the_size_of_their_files(tmp_path):
    quantized = QWEN | {"quantization_config": {"quant_method": "awq"}}
    with pytest.raises(UnsupportedError, match="awq"):
        parse_model_config(quantized, "config.json")
    (tmp_path / "model-1.safetensors").write_bytes(b"x" * 3000)
    (tmp_path / "model-2.safetensors").write_bytes(b"x" * 2000)
    model = load_model(write(tmp_path, quantized))
    assert (model.weight_bytes, model.quantization) == (5000, "awq")


@pytest.mark.parametrize("dtype", ["float32", None])
def test_a_float32_checkpoint_is_loaded_in_half_precision(dtype):
    assert parse_model_config(QWEN | {"torch_dtype": dtype}, "config.json").dtype_bytes == 2


def test_yarn_scaling_makes_the_model_longer():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert parse_model_config(QWEN | {"rope_scaling": yarn}, "c").max_position_embeddings == 131072
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    assert parse_model_config(QWEN | {"rope_scaling": llama3}, "c").max_position_embeddings == 32768


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "kv_lora_rank": 512}
            | {"qk_rope_head_dim": 64},
            ["DeepseekV3ForCausalLM", "MLA"],
        ),
        (
            {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8},
            ["MixtralForCausalLM", "num_local_experts"],
        ),
        (
            {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 128},
            ["Qwen3MoeForCausalLM", "num_experts"],
        ),
        ({"text_config": QWEN | {"model_type": "qwen2"}}, ["text_config", "multimodal"]),
        ({"architectures": ["MambaForCausalLM"]}, ["MambaForCausalLM"]),
        ({"architectures": ["FalconForCausalLM"], "model_type": "falcon"}, ["FalconForCausalLM", "falcon"]),
        ({"architectures": ["GemmaForCausalLM"], "model_type": "gemma"}, ["GemmaForCausalLM", "weights"]),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, ["MistralForCausalLM", "sliding_window"]),
        (
            {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 14},
            ["4,096", "sliding_window"],
        ),
        ({"layer_types": ["full_attention"] * 27 + ["odd_attention"]}, ["odd_attention", "layer_types"]),
    ],
)
def test_what_is_not_covered_is_refused_by_name_with_a_way_out(changes, words):
    with pytest.raises(UnsupportedError) as caught:
        parse_model_config(QWEN | changes, "config.json")
    assert all(word in str(caught.value) for word in words)
    assert "--blocks" in caught.value.hint


@pytest.mark.parametrize(
    "window",
    [
        {"sliding_window": 131072, "use_sliding_window": False},
        {"sliding_window": None, "use_sliding_window": True},
        {"architectures": ["MistralForCausalLM"], "sliding_window": None},
        {"layer_types": ["full_attention"] * 28},
        {"sliding_window": 4096, "use_sliding_window": True},  # from layer 28 on: in none of 28
    ],
)
def test_a_window_that_is_switched_off_does_not_matter(window):
    assert parse_model_config(QWEN | window, "config.json").num_hidden_layers == 28


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("num_hidden_layers", None, "num_hidden_layers is missing"),
        ("num_hidden_layers", 0, "num_hidden_layers is 0"),
        ("num_hidden_layers", "28", "num_hidden_layers is '28'"),
        ("num_attention_heads", -28, "num_attention_heads is -28"),
        ("num_key_value_heads", 5, "num_key_value_heads is 5"),
        ("intermediate_size", None, "intermediate_size is missing"),
        ("vocab_size", 1.5, "vocab_size is 1.5"),
        ("hidden_size", 3585, "head_dim is missing"),
        ("tie_word_embeddings", "no", "tie_word_embeddings is 'no'"),
        ("max_position_embeddings", None, "max_position_embeddings is missing"),
        ("torch_dtype", "int8", "torch_dtype is 'int8'"),
        ("architectures", [], "architectures is []"),
        ("architectures", "Qwen2ForCausalLM", "architectures is 'Qwen2ForCausalLM'"),
        ("quantization_config", "fp8", "quantization_config is 'fp8'"),
        ("rope_scaling", {"rope_type": "yarn", "factor": "x"}, "rope_scaling.factor is 'x'"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(field, value, said):
    with pytest.raises(InputError) as caught:
        parse_model_config(QWEN | {field: value}, "some/config.json")
    assert "some/config.json" in str(caught.value)
    assert said in str(caught.value)


def test_the_attention_alone_needs_no_mlp(tmp_path):
    short = {key: value for key, value in QWEN.items() if key not in {"intermediate_size", "vocab_size"}}
    assert load_attention(write(tmp_path, short)).head_dim == 128


@given(layers=st.integers(1, 8), heads=st.integers(1, 8), group=st.integers(1, 4), mlp=st.integers(1, 64))
def test_one_layer_more_adds_the_same_each_time(layers, heads, group, mlp):
    def parameters(number: int) -> int:
        shape = {"num_attention_heads": heads * group, "num_key_value_heads": heads, "head_dim": 8, "hidden_size": 16}
        config = QWEN | shape | {"num_hidden_layers": number, "intermediate_size": mlp, "vocab_size": 32}
        return parse_model_config(config, "c").num_parameters

    assert parameters(layers + 1) - parameters(layers) == parameters(2) - parameters(1)
