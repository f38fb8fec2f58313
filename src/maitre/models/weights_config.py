"""Read a model's weights from its config.json: dense models to the parameter, others by the size of their files."""

from __future__ import annotations

from typing import Any, Literal

from maitre.errors import InputError, UnsupportedError
from maitre.models.attention_layers import LOG_HINT
from maitre.models.config import parse_attention_config
from maitre.models.families import family_of, with_defaults
from maitre.models.fields import Fields
from maitre.models.geometry import AttentionGeometry, Checkpoint, Model

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

ONLY_BYTES = (
    "`maitre budget --model` without --gpu gives what its cache takes; with the pool of a running server, --blocks N "
    "--block-size B from vLLM's log or its vllm:cache_config_info metric, also how many sequences fit"
)

_OTHER_KINDS = {
    "mla": "keeps one latent a token (MLA)",
    "sliding": "keeps a window or a chunk in some layers (sliding_window, attention_chunk_size)",
    "hybrid": "keeps a recurrent state in some layers",
}

GATED = {
    "cohere2",
    "exaone4",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "ministral",
    "olmo2",
    "olmo3",
    "seed_oss",
}
"""Families whose layers are attention and a gated MLP, as those of the measured models are."""

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


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
    geometry = parse_attention_config(config, source, name)
    fields = Fields.of(config, source)
    if geometry.kind != "full":
        what = f"{geometry.architecture} {_OTHER_KINDS[geometry.kind]}"
        raise UnsupportedError(f"{source}: {what}; the simulator's pool has blocks of one kind", ONLY_BYTES)
    _refuse_other_models(fields, geometry, is_nested=fields.is_part)
    return _dense_model(fields, geometry, file_bytes)


def parse_checkpoint(
    config: dict[str, Any], source: str, name: str | None = None, file_bytes: tuple[int, str] | None = None
) -> Checkpoint:
    """Like `parse_model_config`, also with windows, and with weights known by their files alone.

    Raises:
        InputError: a field is missing or makes no sense, or weight files are missing.
        UnsupportedError: a model whose memory on a GPU is not computed.
    """
    geometry = parse_attention_config(config, source, name)
    fields = Fields.of(config, source)
    if not fields.is_part and geometry.architecture in QKV_BIAS and geometry.kind in {"full", "sliding"}:
        _refuse_other_models(fields, geometry, is_nested=False)
        return _dense_model(fields, geometry, file_bytes)
    _refuse_unknown_peaks(config, fields, geometry)
    if file_bytes is None:
        raise UnsupportedError(
            f"{source}: the weights of {geometry.architecture} are not counted, and there are no files beside it",
            "pass the model's whole directory, or " + LOG_HINT,
        )
    num_bytes, origin = file_bytes
    if not fields.get("quantization_config") and "float32" in {fields.get("torch_dtype"), fields.get("dtype")}:
        num_bytes, origin = num_bytes // 2, f"half of {origin}, stored as float32"
    return Checkpoint(
        **geometry.model_dump(),
        hidden_size=fields.count("hidden_size"),
        intermediate_size=fields.count("intermediate_size"),
        vocab_size=with_defaults(fields, family_of(fields)).count("vocab_size"),
        quantization=_quantization(fields),
        weight_bytes=num_bytes,
        weight_source=origin,
    )


def _refuse_unknown_peaks(config: dict[str, Any], fields: Fields, geometry: AttentionGeometry) -> None:
    """Refuse models whose activation peak is not that of a gated MLP beside attention."""
    what = None
    if any(fields.get(field) for field in _EXPERTS):
        what = "a mixture of experts"
    elif geometry.kind in {"mla", "hybrid"}:
        what = {"mla": "latent attention", "hybrid": "recurrent layers"}[geometry.kind]
    elif any(isinstance(config.get(field), dict) for field in ("vision_config", "audio_config")):
        what = "an encoder for pictures or sound"
    elif family_of(fields) not in GATED:
        what = f"the layers of {family_of(fields)}"
    if what:
        raise UnsupportedError(
            f"{fields.source}: the memory for {what} while the model runs is not known yet ({geometry.architecture})",
            ONLY_BYTES,
        )


def _dense_model(fields: Fields, geometry: AttentionGeometry, file_bytes: tuple[int, str] | None) -> Model:
    source = fields.source
    architecture = geometry.architecture
    bias = QKV_BIAS[architecture]
    has_bias = bias == "always" or (bias == "attention_bias" and fields.flag("attention_bias"))
    parts = geometry.model_dump() | {
        "hidden_size": fields.count("hidden_size"),
        "intermediate_size": fields.count("intermediate_size"),
        "vocab_size": fields.count("vocab_size"),
        "tie_word_embeddings": fields.flag("tie_word_embeddings"),
        "qkv_bias": has_bias,
        "output_bias": has_bias and architecture in OUTPUT_BIAS,
        "mlp_bias": fields.flag("mlp_bias"),
        "qk_norm": architecture == "Qwen3ForCausalLM",
        "quantization": _quantization(fields),
    }
    return _with_weight_bytes(Model(**parts, weight_bytes=1, weight_source=""), source, file_bytes)


def _refuse_other_models(fields: Fields, geometry: AttentionGeometry, *, is_nested: bool) -> None:
    """Refuse what is no dense model with full attention in all layers, by name."""
    label = geometry.architecture
    if is_nested:
        raise UnsupportedError(f"{fields.source}: {label} is a multimodal model with a nested text_config", ONLY_BYTES)
    for field in _EXPERTS:
        if fields.get(field):
            raise UnsupportedError(f"{fields.source}: {label} is a mixture of experts (field {field})", ONLY_BYTES)
    if label not in QKV_BIAS:
        raise UnsupportedError(
            f"{fields.source}: the weights of {label} are not counted yet (counted: {', '.join(sorted(QKV_BIAS))})",
            ONLY_BYTES,
        )


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


def _quantization(fields: Fields) -> str | None:
    value = fields.get("quantization_config")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise fields.wrong("quantization_config", "an object")
    return str(value.get("quant_method", "unnamed method"))
