"""The attention layers of a config.json: which of them keep every token, and which a window, a chunk or a latent."""

from __future__ import annotations

from collections import Counter

from maitre.errors import InputError, UnsupportedError
from maitre.models.fields import TAKE_ORIGINAL, Fields
from maitre.models.layers import AttentionLayers, Keeps

LOG_HINT = (
    "give the KV pool instead of the model: --blocks N --block-size B, both from vLLM's start-up log or its "
    "vllm:cache_config_info metric"
)

_KEEPS: dict[str, Keeps] = {
    "full_attention": "all",
    "attention": "all",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
}

_SPAN_FIELD = {"all": "", "window": "sliding_window", "chunk": "attention_chunk_size"}


def heads_of(fields: Fields) -> tuple[int, int]:
    """Attention heads and key-value heads.

    Raises:
        InputError: missing, or heads that cannot share the key-value heads evenly.
    """
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise InputError(
            f"{fields.source}: num_key_value_heads is {kv_heads}, a divisor of num_attention_heads ({heads}) was "
            "expected",
            TAKE_ORIGINAL,
        )
    return heads, kv_heads


def head_dim_of(fields: Fields) -> int:
    """Width of a head: explicit, or the hidden size shared out over the heads.

    Raises:
        InputError: it is not given, and the hidden size is no multiple of the heads.
    """
    if fields.get("head_dim") is not None:
        return fields.count("head_dim")
    if fields.get("attention_head_dim") is not None:
        return fields.count("attention_head_dim")
    heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    if hidden % heads:
        raise InputError(
            f"{fields.source}: head_dim is missing, and hidden_size {hidden} is no multiple of num_attention_heads "
            f"{heads}",
            TAKE_ORIGINAL,
        )
    return hidden // heads


def equal_layers(fields: Fields, num_layers: int, keeps: Keeps = "all", span: int = 0) -> AttentionLayers:
    """So many layers of the model's ordinary attention."""
    head_dim = head_dim_of(fields)
    return AttentionLayers(
        num_layers=num_layers,
        num_key_value_heads=heads_of(fields)[1],
        head_dim=head_dim,
        value_head_dim=head_dim,
        keeps=keeps,
        span=span,
    )


def layers_by_word(fields: Fields, words: list[str], *, wider: int = 0) -> tuple[AttentionLayers, ...]:
    """The layers that `words` names one by one, in the words of `layer_types`.

    Args:
        fields: the config.
        words: full_attention, sliding_attention or chunked_attention for each layer.
        wider: tokens that the model's window has beyond `sliding_window`.

    Raises:
        UnsupportedError: another word.
    """
    if other := sorted(set(words) - set(_KEEPS)):
        raise UnsupportedError(f"{fields.source}: layers of type {', '.join(other)} (layer_types)", LOG_HINT)
    groups = Counter(_KEEPS[word] for word in words)
    return tuple(
        equal_layers(fields, number, keeps, fields.count(_SPAN_FIELD[keeps]) + wider if keeps != "all" else 0)
        for keeps, number in sorted(groups.items())
    )


def full_or_window(fields: Fields) -> tuple[AttentionLayers, ...]:
    """One attention for all layers unless `layer_types` says otherwise: a window where `sliding_window` is set.

    vLLM 0.32.0, `model_executor/layers/attention/attention.py`: a layer without a window of its own takes the model's.
    A window that no sequence outgrows is none.
    """
    num_layers, window = fields.count("num_hidden_layers"), fields.get("sliding_window")
    words = fields.words("layer_types", num_layers)
    if words is None:
        on = window is not None and window != 0 and fields.count("sliding_window") < longest(fields)
        words = ["sliding_attention" if on else "full_attention"] * num_layers
    return layers_by_word(fields, words)


def switched_window(fields: Fields) -> tuple[AttentionLayers, ...]:
    """Qwen's and SmolLM's: a window counts only with `use_sliding_window`, from layer `max_window_layers` on.

    vLLM 0.32.0 has no windows in some of Qwen's layers (`model_executor/models/qwen2.py`).

    Raises:
        UnsupportedError: a window that is switched on.
    """
    num_layers = fields.count("num_hidden_layers")
    words = fields.words("layer_types", num_layers)
    if not fields.flag("use_sliding_window") or fields.get("sliding_window") is None:
        other = [word for word in words or [] if word not in {"full_attention", "sliding_attention"}]
        return layers_by_word(fields, other or ["full_attention"] * num_layers)
    full = min(fields.count("max_window_layers", default=28), num_layers)  # 28: transformers' default
    if words is None:
        words = ["full_attention"] * full + ["sliding_attention"] * (num_layers - full)
    if "sliding_attention" in words:
        raise UnsupportedError(
            f"{fields.source}: a window of {fields.count('sliding_window'):,} tokens in some layers (sliding_window, "
            "use_sliding_window): vLLM does not run it",
            LOG_HINT,
        )
    return layers_by_word(fields, words)


def longest(fields: Fields) -> int:
    """Positions that the model knows, without scaling."""
    return fields.count("max_position_embeddings")


def alternating(fields: Fields, period: int, *, wider: int = 0) -> tuple[AttentionLayers, ...]:
    """Windows in all layers but every `period`-th, unless `layer_types` or `sliding_window_pattern` says otherwise.

    Layers that share the keys and values of an earlier one (`num_kv_shared_layers`, the last ones) keep nothing.
    """
    num_layers = fields.count("num_hidden_layers")
    words = fields.words("layer_types", num_layers)
    if words is None and not fields.get("sliding_window"):
        words = ["full_attention"] * num_layers
    if words is None:
        period = fields.count("sliding_window_pattern", "_sliding_window_pattern", default=period)
        words = ["sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(num_layers)]
    shared = fields.count("num_kv_shared_layers") if fields.get("num_kv_shared_layers") else 0
    return layers_by_word(fields, words[: num_layers - shared], wider=wider)


def wide_global_heads(fields: Fields) -> tuple[AttentionLayers, ...]:
    """Gemma 4: the full layers have heads of their own width and, with `attention_k_eq_v`, their own number.

    Hugging Face transformers, `configuration_gemma4.py`; a width of 512 where `global_head_dim` is missing.
    """
    wide = {"head_dim": fields.count("global_head_dim", default=512), "value_head_dim": 0}
    wide["value_head_dim"] = wide["head_dim"]
    if fields.flag("attention_k_eq_v") and fields.get("num_global_key_value_heads") is not None:
        wide["num_key_value_heads"] = fields.count("num_global_key_value_heads")
    return tuple(
        layers.model_copy(update=wide) if layers.keeps == "all" else layers for layers in alternating(fields, 6)
    )


def chunked(fields: Fields) -> tuple[AttentionLayers, ...]:
    """Llama 4: layers with rotary positions attend in chunks, those without (a 0 in `no_rope_layers`) to everything.

    vLLM 0.32.0, `model_executor/models/llama4.py`; every fourth where `no_rope_layers` is missing or empty.
    """
    num_layers = fields.count("num_hidden_layers")
    interval = fields.count("no_rope_layer_interval", default=4)
    marks = fields.get("no_rope_layers") or [(layer + 1) % interval for layer in range(num_layers)]
    if not isinstance(marks, list) or len(marks) < num_layers:
        raise fields.wrong("no_rope_layers", f"a list of {num_layers} layers")
    local = "chunked_attention" if fields.get("attention_chunk_size") else "full_attention"
    return layers_by_word(fields, [local if mark else "full_attention" for mark in marks[:num_layers]])


def latent_layers(fields: Fields, num_layers: int) -> AttentionLayers:
    """Multi-head latent attention: one latent and one rotary key a token, and the key of a sparse index if any.

    vLLM 0.32.0, `model_executor/models/deepseek_v2.py`.

    Raises:
        UnsupportedError: layers share one index.
    """
    shares_index = fields.count("index_topk_freq", default=1) > 1 or bool(fields.get("index_topk_pattern"))
    if shares_index:
        raise UnsupportedError(
            f"{fields.source}: layers share an index (index_topk_freq, index_topk_pattern); not covered yet", LOG_HINT
        )
    return AttentionLayers(
        num_layers=num_layers,
        num_key_value_heads=1,
        head_dim=fields.count("kv_lora_rank") + fields.count("qk_rope_head_dim"),
        value_head_dim=0,
        is_latent=True,
        index_head_dim=fields.count("index_head_dim") if fields.get("index_topk") else 0,
    )


def latent(fields: Fields) -> tuple[AttentionLayers, ...]:
    """A latent in every layer."""
    return (latent_layers(fields, fields.count("num_hidden_layers")),)
