"""Read what a model's cache takes from a Hugging Face config.json."""

from __future__ import annotations

from typing import Any

from maitre.errors import InputError
from maitre.models.attention_layers import head_dim_of, heads_of, longest
from maitre.models.families import architecture_of, family_of, layers_of, num_mtp_layers, with_defaults
from maitre.models.fields import TAKE_ORIGINAL, Fields
from maitre.models.geometry import DTYPE_BYTES, AttentionGeometry, Dtype


def parse_attention_config(config: dict[str, Any], source: str, name: str | None = None) -> AttentionGeometry:
    """What the layers of a config.json keep of a sequence; enough for the bytes that its cache takes.

    Args:
        config: the parsed config.json.
        source: the file, for messages.
        name: what to call the model; the name in the config where None.

    Raises:
        InputError: a field is missing or makes no sense.
        UnsupportedError: a family, or a field of it, whose cache is not known.
    """
    fields = Fields.of(config, source)
    architecture = architecture_of(fields)
    if not architecture and fields.get("model_type") is None:
        raise fields.wrong("architectures", "a list such as ['Qwen2ForCausalLM']")
    family = family_of(fields)
    fields = with_defaults(fields, family)
    attention, states = layers_of(fields, family)
    heads, kv_heads = heads_of(fields)
    latent = all(layers.is_latent for layers in attention)
    return AttentionGeometry(
        name=name or str(fields.get("_name_or_path") or architecture or family),
        source=source,
        architecture=architecture or family,
        num_hidden_layers=fields.count("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=1 if latent else kv_heads,
        head_dim=attention[0].head_dim if latent else head_dim_of(fields),
        dtype=_dtype(fields),
        max_position_embeddings=_positions(fields, family),
        attention=attention,
        states=states,
        num_mtp_layers=num_mtp_layers(fields),
        kv_cache_dtype=_kv_cache_dtype(fields),
    )


def _positions(fields: Fields, family: str) -> int:
    """Longest sequence, with scaled rotary positions (vLLM 0.26.0, `config/model.py`, `_get_and_verify_max_len`)."""
    positions = longest(fields)
    scaling = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(scaling, dict):
        raise InputError(f"{fields.source}: rope_scaling is {scaling!r}, an object was expected", TAKE_ORIGINAL)
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor", 1.0)
    if kind in (None, "default", "llama3", "longrope", "su", "mrope") or family.startswith("gemma3"):
        return positions
    if not isinstance(factor, int | float) or not 1 <= factor <= 1024:
        raise InputError(
            f"{fields.source}: rope_scaling.factor is {factor!r}, a number from 1 to 1024 was expected", TAKE_ORIGINAL
        )
    if kind == "yarn":
        positions = Fields(scaling, fields.source).count("original_max_position_embeddings", default=positions)
    return int(positions * factor)


def _dtype(fields: Fields) -> Dtype:
    """The type that `--dtype auto` loads: half precision for a float32 checkpoint.

    vLLM 0.26.0, `config/model.py` `_resolve_auto_dtype`; bfloat16 where the GPU has it, float16 elsewhere.
    """
    value = fields.get("torch_dtype") or fields.get("dtype")
    if value is None or value == "float32":
        return "bfloat16"
    if not isinstance(value, str) or value not in DTYPE_BYTES:
        raise InputError(
            f"{fields.source}: torch_dtype is {value!r}, one of {', '.join(DTYPE_BYTES)} was expected", TAKE_ORIGINAL
        )
    return value


def _kv_cache_dtype(fields: Fields) -> str:
    """The type that `--kv-cache-dtype auto` takes: what a quantized checkpoint asks for, else the model's own.

    vLLM 0.32.0, `utils/torch_utils.py`, `get_kv_cache_quant_algo_string`, and `layers/attention/attention.py`.
    """
    quantization = fields.get("quantization_config")
    if not isinstance(quantization, dict):
        return "auto"
    inner = quantization.get("quantization")
    found = {**quantization, **inner} if isinstance(inner, dict) else quantization
    scheme = found.get("kv_cache_scheme")
    if isinstance(scheme, dict):
        return "nvfp4" if scheme.get("num_bits") == 4 else "fp8"
    algorithm = str(found.get("kv_cache_quant_algo") or "").lower()
    return {"fp8": "fp8", "fp8_e4m3": "fp8", "nvfp4": "nvfp4"}.get(algorithm, "auto")
