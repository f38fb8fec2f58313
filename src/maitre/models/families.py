"""The model families whose cache is known, by `model_type`, and what reads their layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from maitre.errors import UnsupportedError
from maitre.models.attention_layers import (
    LOG_HINT,
    alternating,
    chunked,
    full_or_window,
    latent,
    switched_window,
    wide_global_heads,
)
from maitre.models.fields import Fields
from maitre.models.layers import AttentionLayers
from maitre.models.state_layers import (
    Layers,
    gated_delta_net,
    jamba,
    kimi_linear,
    mamba2_beside_attention,
    mamba2_between_attention,
    nemotron_h,
    short_convolution,
)

_PLAIN = [
    "arcee",
    "cohere",
    "ernie4_5",
    "ernie4_5_moe",
    "gemma",
    "glm",
    "glm4",
    "glm4_moe",
    "granite",
    "granitemoe",
    "hunyuan_v1_dense",
    "llama",
    "minimax_m2",
    "ministral",
    "ministral3",
    "mistral",
    "mixtral",
    "olmo",
    "olmo2",
    "olmoe",
    "phi3",
    "phimoe",
    "seed_oss",
    "starcoder2",
]

_SWITCHED = [
    "qwen2",
    "qwen2_moe",
    "qwen2_vl",
    "qwen2_vl_text",
    "qwen2_5_vl",
    "qwen2_5_vl_text",
    "qwen3",
    "qwen3_moe",
    "qwen3_vl_text",
    "qwen3_vl_moe_text",
    "smollm3",
]

_LATENT = ["deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2", "pangu_ultra_moe"]

_ATTENTION: dict[str, Callable[[Fields], tuple[AttentionLayers, ...]]] = {
    **dict.fromkeys(_PLAIN, full_or_window),
    **dict.fromkeys(_SWITCHED, switched_window),
    **dict.fromkeys(_LATENT, latent),
    "cohere2": partial(alternating, period=4, wider=1),  # vLLM `commandr.py`: the window and the token itself
    "exaone4": partial(alternating, period=4),
    "gemma2": partial(alternating, period=2),
    "gemma3": partial(alternating, period=6),
    "gemma3_text": partial(alternating, period=6),
    "gemma3n_text": partial(alternating, period=5),
    "gemma4_text": wide_global_heads,
    "gpt_oss": partial(alternating, period=2),
    "llama4_text": chunked,
    "olmo3": partial(alternating, period=4),
}
"""Periods: Hugging Face transformers, `configuration_*.py` of each."""

_HYBRID: dict[str, Callable[[Fields], Layers]] = {
    "bamba": mamba2_between_attention,
    "falcon_h1": mamba2_beside_attention,
    "granitemoehybrid": mamba2_between_attention,
    "jamba": jamba,
    "kimi_linear": kimi_linear,
    "lfm2": short_convolution,
    "lfm2_moe": short_convolution,
    "nemotron_h": nemotron_h,
    "qwen3_5": gated_delta_net,
    "qwen3_5_moe": gated_delta_net,
    "qwen3_5_moe_text": gated_delta_net,
    "qwen3_5_text": gated_delta_net,
    "qwen3_next": gated_delta_net,
}

_BY_ARCHITECTURE = {
    "GraniteForCausalLM": "granite",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""The family of a config.json without a `model_type`."""

_OTHER_NAMES = {"hunyuan_v1_dense": "hunyuandensev1", "kimi_k2": "deepseekv3"}
"""Families whose architecture has another name."""

_GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "vocab_size": 262208,
}

_WINDOW = {"sliding_window": 4096}

_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "ministral": _WINDOW,
    "mistral": _WINDOW,
}
"""What transformers fills in where a field is left out, which is not the same as null (`configuration_*.py`)."""

_CHANGES_THE_CACHE = {
    "is_encoder_decoder": "has an encoder and its cross-attention",
    "use_cla": "shares the KV cache between layers",
    "block_configs": "has layers of different shapes",
    "compress_ratios": "compresses its latent",
    "swa_num_key_value_heads": "has windows with heads of their own",
    "swa_head_dim": "has windows with heads of their own",
    "attn_window_size": "attends in a window (attn_window_size)",
}
"""Fields that change what is kept, in a way that is not computed."""

_ONLY_IN = {
    "num_kv_shared_layers": {"gemma3n_text", "gemma4_text"},
    "attention_chunk_size": {"llama4_text"},
    "kv_lora_rank": {*_LATENT, "kimi_linear"},
    "full_attention_interval": {family for family in _HYBRID if family.startswith("qwen3")},
    "index_topk": {"deepseek_v32", "glm_moe_dsa"},
}
"""Fields that only these families read."""

_MTP_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


def known_families() -> list[str]:
    """Every `model_type` whose cache is known."""
    return sorted(_ATTENTION | _HYBRID)


def family_of(fields: Fields) -> str:
    """The `model_type`, or what the architecture stands for where there is none.

    Raises:
        UnsupportedError: a family that is not known.
    """
    architecture = architecture_of(fields)
    family = str(fields.get("model_type") or _BY_ARCHITECTURE.get(architecture) or "")
    if (family in _ATTENTION or family in _HYBRID) and (fields.is_part or _belongs(architecture, family)):
        _refuse_other_caches(fields, family)
        return family
    label = f"architecture {architecture}" if architecture else "the model"
    what = f" (model_type {family})" if family else ""
    raise UnsupportedError(f"{fields.source}: {label} is not covered yet{what}", LOG_HINT)


def _belongs(architecture: str, family: str) -> bool:
    """Whether the architecture is the family's own: a config may have another model's `model_type`."""
    for suffix in ("ForCausalLM", "ForConditionalGeneration"):
        if architecture.endswith(suffix):
            name = architecture.removesuffix(suffix).replace("_", "").lower()
            return name == _OTHER_NAMES.get(family, family.removesuffix("_text").replace("_", ""))
    return not architecture


def _refuse_other_caches(fields: Fields, family: str) -> None:
    for field, what in _CHANGES_THE_CACHE.items():
        if fields.get(field):
            raise UnsupportedError(f"{fields.source}: {family} {what} (field {field}); not covered yet", LOG_HINT)
    for field, families in _ONLY_IN.items():
        if fields.get(field) and family not in families:
            raise UnsupportedError(f"{fields.source}: {family} with {field} is not covered yet", LOG_HINT)


def architecture_of(fields: Fields) -> str:
    """The first entry of `architectures`, or ''."""
    listed = fields.get("architectures")
    return listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], str) else ""


def with_defaults(fields: Fields, family: str) -> Fields:
    """The fields, with those that transformers fills in for this family."""
    return Fields(_DEFAULTS.get(family, {}) | fields.values, fields.source, is_part=fields.is_part)


def layers_of(fields: Fields, family: str) -> Layers:
    """The attention layers and the recurrent layers of a model.

    Raises:
        InputError: a field is missing or makes no sense.
        UnsupportedError: a layer whose cache is not known.
    """
    if family in _HYBRID:
        return _HYBRID[family](fields)
    return _ATTENTION[family](fields), ()


def num_mtp_layers(fields: Fields) -> int:
    """Layers for multi-token prediction that the checkpoint has."""
    return max(fields.count(name) if fields.get(name) else 0 for name in _MTP_FIELDS)
