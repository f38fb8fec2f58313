"""Read a Hugging Face config.json: dense architectures exactly, everything else refused by name."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, cast

from maitre.errors import InputError, UnsupportedError
from maitre.models.geometry import DTYPE_BYTES, AttentionGeometry, Dtype, Model

Bias = Literal["always", "never", "attention_bias"]

QKV_BIAS: dict[str, Bias] = {
    "GraniteForCausalLM": "attention_bias",
    "LlamaForCausalLM": "attention_bias",
    "MistralForCausalLM": "never",
    "Phi3ForCausalLM": "never",
    "Qwen2ForCausalLM": "always",
    "Qwen3ForCausalLM": "attention_bias",
}
"""The architectures whose parameters can be counted exactly, and when their query, key and value projections have a
bias (Hugging Face transformers, `modeling_*.py` of each)."""

OUTPUT_BIAS = {"GraniteForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM"}
"""Architectures whose output projection has a bias too when `attention_bias` is true."""

LOG_HINT = (
    "give the KV pool instead of the model: --blocks N --block-size B, both from vLLM's start-up log or its "
    "vllm:cache_config_info metric"
)

_TAKE_ORIGINAL = "take config.json from the model's own repository"

_UNSUPPORTED_FIELDS = {
    "text_config": "is a multimodal model with a nested text_config",
    "kv_lora_rank": "keeps a compressed latent in the KV cache (MLA)",
    "num_experts": "is a mixture of experts",
    "num_local_experts": "is a mixture of experts",
    "n_routed_experts": "is a mixture of experts",
    "attention_chunk_size": "attends in chunks",
    "full_attention_interval": "is a hybrid with recurrent layers",
    "ssm_state_size": "is a hybrid with recurrent layers",
    "mamba_d_state": "is a hybrid with recurrent layers",
    "layers_block_type": "is a hybrid with recurrent layers",
    "num_kv_shared_layers": "shares the KV cache between layers",
}

_Number = TypeVar("_Number", int, bool)
_COUNT = (int, "a whole number of at least 1")


def parse_attention_config(config: dict[str, Any], source: str, name: str | None = None) -> AttentionGeometry:
    """The attention geometry of a config.json; enough for the bytes of KV cache that one token takes.

    Args:
        config: the parsed config.json.
        source: the file, for messages.
        name: what to call the model; the name in the config where None.

    Raises:
        InputError: a field is missing or makes no sense.
        UnsupportedError: the KV cache of this architecture is not one of equal full-attention layers.
    """
    architecture = _architecture(config, source)
    heads = _count(config, "num_attention_heads", source)
    kv_heads = _count(config, "num_key_value_heads", source, default=heads)
    if heads % kv_heads:
        raise InputError(
            f"{source}: num_key_value_heads is {kv_heads}, a divisor of num_attention_heads ({heads}) was expected",
            _TAKE_ORIGINAL,
        )
    positions = _positions(config, source)
    _refuse_windows(config, architecture, positions, source)
    return AttentionGeometry(
        name=name or str(config.get("_name_or_path") or architecture),
        source=source,
        architecture=architecture,
        num_hidden_layers=_count(config, "num_hidden_layers", source),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=_head_dim(config, heads, source),
        dtype=_dtype(config, source),
        max_position_embeddings=positions,
    )


def parse_model_config(
    config: dict[str, Any], source: str, name: str | None = None, file_bytes: tuple[int, str] | None = None
) -> Model:
    """The model that a config.json describes, with an exact parameter count.

    Args:
        config: the parsed config.json.
        source: the file, for messages.
        name: what to call the model; the name in the config where None.
        file_bytes: bytes of the weight files and where that figure comes from, when they are at hand.

    Raises:
        InputError: a field is missing or makes no sense, or weight files are missing.
        UnsupportedError: an architecture or a field that this program does not compute.
    """
    attention = parse_attention_config(config, source, name)
    architecture = attention.architecture
    bias = QKV_BIAS[architecture]
    has_bias = bias == "always" or (bias == "attention_bias" and _flag(config, "attention_bias", source))
    fields = attention.model_dump() | {
        "hidden_size": _count(config, "hidden_size", source),
        "intermediate_size": _count(config, "intermediate_size", source),
        "vocab_size": _count(config, "vocab_size", source),
        "tie_word_embeddings": _flag(config, "tie_word_embeddings", source),
        "qkv_bias": has_bias,
        "output_bias": has_bias and architecture in OUTPUT_BIAS,
        "mlp_bias": _flag(config, "mlp_bias", source),
        "qk_norm": architecture == "Qwen3ForCausalLM",
        "quantization": _quantization(config, source),
    }
    return _with_weight_bytes(Model(**fields, weight_bytes=1, weight_source=""), source, file_bytes)


def _with_weight_bytes(model: Model, source: str, file_bytes: tuple[int, str] | None) -> Model:
    if model.quantization:
        if file_bytes is None:
            raise UnsupportedError(
                f"{source}: quantization_config ({model.quantization}): the size of quantized weights follows from "
                "their files, and there are none beside it",
                "pass the model's whole directory, or " + LOG_HINT,
            )
        num_bytes, origin = file_bytes
        return model.model_copy(update={"weight_bytes": num_bytes, "weight_source": origin})
    computed = model.num_parameters * model.dtype_bytes
    origin = f"{model.num_parameters:,} parameters × {model.dtype_bytes} B"
    if file_bytes is None:
        return model.model_copy(update={"weight_bytes": computed, "weight_source": origin})
    num_bytes, where = file_bytes
    if num_bytes < computed:
        raise InputError(
            f"{source}: the weight files hold {num_bytes:,} B ({where}), the geometry needs {computed:,} B",
            "a weight file is missing, or config.json belongs to another model",
        )
    return model.model_copy(update={"weight_bytes": computed, "weight_source": f"{origin}, checked with {where}"})


def _architecture(config: dict[str, Any], source: str) -> str:
    listed = config.get("architectures")
    named = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], str) else None
    for field, what in _UNSUPPORTED_FIELDS.items():
        if config.get(field):
            label = named or config.get("model_type") or "the model"
            raise UnsupportedError(f"{source}: {label} {what} (field {field}); not covered yet", LOG_HINT)
    if named is None:
        raise InputError(
            f"{source}: architectures is {listed!r}, a list such as ['Qwen2ForCausalLM'] was expected",
            _TAKE_ORIGINAL,
        )
    if named not in QKV_BIAS:
        raise UnsupportedError(
            f"{source}: architecture {named} is not covered yet (covered: {', '.join(sorted(QKV_BIAS))})", LOG_HINT
        )
    return named


def _refuse_windows(config: dict[str, Any], architecture: str, positions: int, source: str) -> None:
    """Refuse windows that are really on: set, shorter than the longest sequence, and not switched off."""
    layers = config.get("layer_types")
    if isinstance(layers, list) and (other := sorted({str(layer) for layer in layers} - {"full_attention"})):
        raise UnsupportedError(
            f"{source}: {architecture} has layers of type {', '.join(other)} (layer_types)", LOG_HINT
        )
    window = config.get("sliding_window")
    on = config.get("use_sliding_window", architecture not in {"Qwen2ForCausalLM", "Qwen3ForCausalLM"})
    if on and isinstance(window, int) and window < positions:
        raise UnsupportedError(
            f"{source}: {architecture} attends in a window of {window:,} tokens (sliding_window); not covered yet",
            LOG_HINT,
        )


def _positions(config: dict[str, Any], source: str) -> int:
    """Longest sequence, with scaled rotary positions (vLLM 0.26.0, `config/model.py`, `_get_and_verify_max_len`)."""
    positions = _count(config, "max_position_embeddings", source)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(scaling, dict):
        raise InputError(f"{source}: rope_scaling is {scaling!r}, an object was expected", _TAKE_ORIGINAL)
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor", 1.0)
    if kind in {None, "default", "llama3", "longrope", "su"}:
        return positions
    if not isinstance(factor, int | float) or not 1 <= factor <= 1024:
        raise InputError(
            f"{source}: rope_scaling.factor is {factor!r}, a number from 1 to 1024 was expected", _TAKE_ORIGINAL
        )
    if kind == "yarn":
        positions = _typed(scaling, "original_max_position_embeddings", source, positions, _COUNT)
    return int(positions * factor)


def _head_dim(config: dict[str, Any], heads: int, source: str) -> int:
    if config.get("head_dim") is not None:
        return _count(config, "head_dim", source)
    hidden = _count(config, "hidden_size", source)
    if hidden % heads:
        raise InputError(
            f"{source}: head_dim is missing, and hidden_size {hidden} is no multiple of num_attention_heads {heads}",
            _TAKE_ORIGINAL,
        )
    return hidden // heads


def _dtype(config: dict[str, Any], source: str) -> Dtype:
    """The type that `--dtype auto` loads: half precision for a float32 checkpoint.

    vLLM 0.26.0, `config/model.py` `_resolve_auto_dtype`; bfloat16 where the GPU has it, float16 elsewhere.
    """
    value = config.get("torch_dtype", config.get("dtype"))
    if value is None or value == "float32":
        return "bfloat16"
    if value not in DTYPE_BYTES:
        raise InputError(
            f"{source}: torch_dtype is {value!r}, one of {', '.join(DTYPE_BYTES)} was expected",
            _TAKE_ORIGINAL,
        )
    return cast("Dtype", value)


def _quantization(config: dict[str, Any], source: str) -> str | None:
    value = config.get("quantization_config")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InputError(f"{source}: quantization_config is {value!r}, an object was expected", "")
    return str(value.get("quant_method", "unnamed method"))


def _count(config: dict[str, Any], field: str, source: str, default: int | None = None) -> int:
    return _typed(config, field, source, default, _COUNT)


def _flag(config: dict[str, Any], field: str, source: str) -> bool:
    return _typed(config, field, source, False, (bool, "true or false"))  # noqa: FBT003 - the default of the field


def _typed(
    config: dict[str, Any], field: str, source: str, default: _Number | None, kind: tuple[type[_Number], str]
) -> _Number:
    value = config.get(field)
    if value is None and default is not None:
        return default
    expected, words = kind
    if type(value) is not expected or (expected is int and value < 1):
        shown = "missing" if value is None else f"{value!r}"
        raise InputError(f"{source}: {field} is {shown}, {words} was expected", _TAKE_ORIGINAL)
    return value
