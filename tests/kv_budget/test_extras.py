"""What fills a GPU beyond a plain dense model: windows, files of many kinds, LoRA, a draft."""

import json
from pathlib import Path

import pytest

from maitre.errors import InputError, UnsupportedError
from maitre.gpus import find_gpu
from maitre.kv_budget import (
    Extras,
    LoraSlots,
    Speculation,
    estimate_kv_budget,
    kv_bytes_per_token,
    lora_bytes,
    max_seqs_of_length,
    memory_parts,
)
from maitre.models import (
    load_attention,
    load_checkpoint,
    load_model,
    parse_attention_config,
    parse_checkpoint,
    parse_model_config,
)
from maitre.records import ServerConfig

CONFIGS = json.loads(Path("tests/data/cache_layouts_vllm_0.32.0.json").read_text())["configs"]
TINY = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}


def server(**changes):
    fields = {"model": "m", "max_model_len": 8192, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
    return ServerConfig(**(fields | changes))


def write(directory, config, **files):
    (directory / "config.json").write_text(json.dumps(config))
    for name, size in files.items():
        with (directory / name.replace("__", "-").replace("_DOT_", ".")).open("wb") as file:
            file.truncate(size)
    return str(directory)


def part(budget, name):
    return next(part.num_bytes for part in budget.parts if part.name == name)


def test_windows_hold_more_sequences_than_the_same_model_without():
    mistral = parse_checkpoint(CONFIGS["mistral-7b-v0.1"], "config.json")
    gpu, settings = find_gpu("H200"), server(max_model_len=32768)
    windows = estimate_kv_budget(mistral, gpu, settings)
    assert (windows.kv_bytes_per_token, windows.fixed_bytes_per_seq) == (0, 1281 * 16 * 131072)
    full = load_model("Mistral-7B-v0.3")
    assert max_seqs_of_length(windows, 32768) > 1.5 * max_seqs_of_length(estimate_kv_budget(full, gpu, settings), 32768)


def test_weights_known_by_their_files_alone(tmp_path):
    path = write(tmp_path, CONFIGS["gemma-2-9b"], model_DOT_safetensors=18_483_411_456)
    budget = estimate_kv_budget(load_checkpoint(path), find_gpu("H200"), server())
    assert part(budget, "weights") == 18_483_411_456
    assert sum(p.num_bytes for p in budget.parts) == find_gpu("H200").memory_bytes
    two = memory_parts(load_checkpoint(path), find_gpu("H200"), server(tensor_parallel_size=2))
    assert next(p.num_bytes for p in two if p.name == "weights") == 18_483_411_456 // 2


def test_float32_files_load_in_half_precision(tmp_path):
    path = write(tmp_path, CONFIGS["gemma-2-9b"] | {"torch_dtype": "float32"}, model_DOT_safetensors=4000)
    assert load_checkpoint(path).weight_bytes == 2000


@pytest.mark.parametrize("name", ["gemma-2-9b", "exaone-4-32b"])
def test_without_files_uncounted_weights_are_refused(name):
    with pytest.raises(UnsupportedError, match=r"weights of \w+ are not counted"):
        parse_checkpoint(CONFIGS[name], "config.json")


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("gpt-oss-120b", "mixture of experts"),
        ("deepseek-v2-lite", "mixture of experts"),
        ("nemotron-h-8b", "recurrent layers"),
        ("gemma-4-31b", "layers of gemma4_text"),
    ],
)
def test_a_peak_that_is_not_known_is_refused_by_name(name, word):
    with pytest.raises(UnsupportedError, match=word) as caught:
        parse_checkpoint(CONFIGS[name], "config.json", file_bytes=(1000, "files"))
    assert "--blocks" in caught.value.hint


def test_the_simulator_s_models_keep_every_token():
    """Its pool has one kind of block."""
    for name in ("mistral-7b-v0.1", "phi-3-mini-4k"):
        assert parse_checkpoint(CONFIGS[name], "config.json").kind == "sliding"
        with pytest.raises(UnsupportedError, match="keeps a window"):
            parse_model_config(CONFIGS[name], "config.json")


def test_gguf_files_and_copies(tmp_path):
    qwen = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"} | TINY
    path = write(tmp_path, qwen, model_DOT_gguf=5000)
    model = load_model(path)
    assert (model.weight_bytes, model.quantization) == (5000, "gguf")
    (tmp_path / "other.gguf").write_bytes(b"x")
    with pytest.raises(InputError, match="2 GGUF files"):
        load_model(path)
    for file in tmp_path.glob("*.gguf"):
        file.unlink()
    for number in (1, 2):
        (tmp_path / f"model-0000{number}-of-00002.gguf").write_bytes(b"x" * 700)
    assert load_model(path).weight_bytes == 1400


def test_a_consolidated_copy_counts_once(tmp_path):
    quantized = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"} | TINY
    quantized["quantization_config"] = {"quant_method": "fp8"}
    path = write(tmp_path, quantized, model_DOT_safetensors=3000, consolidated_DOT_safetensors=3000)
    assert load_model(path).weight_bytes == 3000


@pytest.mark.parametrize(
    ("quantization", "per_token"),
    [
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, 1),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}, 1),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": None}, 2),
        ({"quant_method": "awq"}, 2),
    ],
)
def test_a_checkpoint_may_ask_for_an_fp8_cache(quantization, per_token):
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": quantization} | TINY
    model = parse_attention_config(config, "c")
    assert kv_bytes_per_token(model, "auto", 1, "auto") == 3 * 2 * 2 * 64 * per_token
    assert kv_bytes_per_token(model, "bfloat16", 1, "auto") == 3 * 2 * 2 * 64 * 2


def test_modelopt_s_quantization_in_a_file_of_its_own(tmp_path):
    path = write(tmp_path, {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | TINY, m_DOT_safetensors=9)
    separate = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(separate))
    assert load_attention(path).kv_cache_dtype == "fp8"
    assert (load_model(path).quantization, load_model(path).weight_bytes) == ("modelopt", 9)


@pytest.mark.parametrize(
    ("architecture", "num_bytes"),
    [
        ("LlamaForCausalLM", 1_717_248),
        ("Qwen2ForCausalLM", 1_523_712),
        ("Qwen3ForCausalLM", 1_717_248),
        ("MistralForCausalLM", 1_523_712),
        ("GraniteForCausalLM", 1_717_248),
        ("Phi3ForCausalLM", 1_422_336),
    ],
)
def test_lora_slots_are_what_vllm_0_32_allocates(architecture, num_bytes):
    """Measured: two slots of rank 16 on models of three layers, built by vLLM 0.32.0."""
    model = parse_checkpoint({"architectures": [architecture]} | TINY, "c")
    assert lora_bytes(model, LoraSlots(max_loras=2, max_lora_rank=16), 1, 2) == num_bytes
    halves = lora_bytes(model, LoraSlots(max_loras=2, max_lora_rank=16), 2, 2)
    assert num_bytes / 2 < halves < num_bytes


def test_lora_and_a_draft_take_their_share_of_the_pool():
    model, gpu = load_model("Qwen2.5-7B"), find_gpu("H200")
    plain = estimate_kv_budget(model, gpu, server())
    lora = estimate_kv_budget(model, gpu, server(), extras=Extras(lora=LoraSlots(max_loras=4, max_lora_rank=64)))
    assert part(plain, "KV pool") - part(lora, "KV pool") == part(lora, "LoRA slots")
    speculation = Speculation(method="draft", num_speculative_tokens=4, draft_model=load_model("Qwen2.5-0.5B"))
    drafted = estimate_kv_budget(model, gpu, server(), extras=Extras(speculation=speculation))
    assert part(plain, "KV pool") - part(drafted, "KV pool") == part(drafted, "draft model") > 9e8
    assert drafted.kv_bytes_per_token == plain.kv_bytes_per_token + 24 * 2 * 2 * 64 * 2
    mtp = Extras(speculation=Speculation(method="mtp", num_speculative_tokens=1))
    with pytest.raises(UnsupportedError, match="MTP layers"):
        estimate_kv_budget(model.model_copy(update={"num_mtp_layers": 1}), gpu, server(), extras=mtp)
