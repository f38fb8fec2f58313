"""The recurrent layers of a config.json, and the attention layers between them.

Shapes: vLLM 0.32.0, `get_mamba_state_shape_from_config` of each model in `model_executor/models/`.
"""

from __future__ import annotations

from collections.abc import Sequence

from maitre.errors import UnsupportedError
from maitre.models.attention_layers import LOG_HINT, equal_layers, latent_layers
from maitre.models.fields import Fields
from maitre.models.layers import AttentionLayers, StateLayers

Layers = tuple[tuple[AttentionLayers, ...], tuple[StateLayers, ...]]

_ATTENTION = {"attention", "full_attention"}
_STATE = {"mamba", "linear_attention", "conv"}
_NOTHING = {"mlp", "moe"}
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def gated_delta_net(fields: Fields) -> Layers:
    """Qwen3-Next and later: gated delta nets, and full attention in every `full_attention_interval`-th layer."""
    interval, num_layers = fields.count("full_attention_interval", default=4), fields.count("num_hidden_layers")
    words = fields.words("layer_types", num_layers) or [
        "linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(num_layers)
    ]
    keys = fields.count("linear_num_key_heads") * fields.count("linear_key_head_dim")
    heads, width = fields.count("linear_num_value_heads"), fields.count("linear_value_head_dim")
    state = StateLayers(
        num_layers=1,
        conv_channels=2 * keys + heads * width,
        conv_steps=_conv_steps(fields, "linear_conv_kernel_dim"),
        num_heads=heads,
        head_size=width * fields.count("linear_key_head_dim"),
        state_dtype=_state_dtype(fields, "mamba_ssm_dtype"),
    )
    return _by_word(fields, words, state)


def jamba(fields: Fields) -> Layers:
    """Jamba: Mamba-1, and attention in one layer of every `attn_layer_period`."""
    period = fields.count("attn_layer_period", default=8)
    offset = fields.count("attn_layer_offset", default=4) if fields.get("attn_layer_offset") != 0 else 0
    words = ["attention" if i % period == offset else "mamba" for i in range(fields.count("num_hidden_layers"))]
    width = fields.count("mamba_expand", default=2) * fields.count("hidden_size")
    state = StateLayers(
        num_layers=1,
        conv_channels=width,
        conv_steps=_conv_steps(fields, "mamba_d_conv", default=4),
        conv_keeps_drafts=False,
        num_heads=width,
        head_size=fields.count("mamba_d_state", default=16),
    )
    return _by_word(fields, words, state)


def nemotron_h(fields: Fields) -> Layers:
    """Nemotron-H: Mamba-2 with a state in float32, a few attention layers, and layers that keep nothing."""
    num_layers = fields.count("num_hidden_layers")
    pattern = fields.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        words = [_PATTERN.get(letter, letter) for letter in pattern]
    elif (listed := fields.words("layers_block_type", num_layers)) is not None:
        words = listed
    else:
        raise fields.wrong("hybrid_override_pattern", "a letter for each layer")
    if fields.get("sliding_window"):
        raise UnsupportedError(f"{fields.source}: sliding_window beside recurrent layers is not covered yet", LOG_HINT)
    heads, width = fields.count("mamba_num_heads"), fields.count("mamba_head_dim")
    state = _mamba2(
        fields, heads, width, fields.count("n_groups", "mamba_n_groups"), fields.count("ssm_state_size"), "conv_kernel"
    )
    dtype = _state_dtype(fields, "mamba_ssm_cache_dtype") or "float32"
    return _by_word(fields, words, state.model_copy(update={"state_dtype": dtype}))


def mamba2_between_attention(fields: Fields) -> Layers:
    """Granite 4 and Bamba: Mamba-2, and attention where `layer_types` or `attn_layer_indices` has it."""
    num_layers = fields.count("num_hidden_layers")
    words = fields.words("layer_types", num_layers) or fields.words("layers_block_type", num_layers)
    if words is None:
        attention = set(fields.indices("attn_layer_indices"))
        words = ["attention" if layer in attention else "mamba" for layer in range(num_layers)]
    return _by_word(fields, words, _granite_mamba(fields, fields.count("mamba_expand") * fields.count("hidden_size")))


def mamba2_beside_attention(fields: Fields) -> Layers:
    """Falcon-H1: attention and Mamba-2 in every layer."""
    width = fields.get("mamba_d_ssm")
    inner = fields.count("mamba_d_ssm") if width else fields.count("mamba_expand") * fields.count("hidden_size")
    num_layers = fields.count("num_hidden_layers")
    state = _granite_mamba(fields, inner).model_copy(update={"num_layers": num_layers})
    return (equal_layers(fields, num_layers),), (state,)


def short_convolution(fields: Fields) -> Layers:
    """LFM2: short convolutions between attention layers."""
    num_layers = fields.count("num_hidden_layers")
    words = fields.words("layer_types", num_layers)
    if words is None:
        attention = set(fields.indices("full_attn_idxs"))
        words = ["full_attention" if layer in attention else "conv" for layer in range(num_layers)]
    state = StateLayers(
        num_layers=1,
        conv_channels=fields.count("conv_dim", "hidden_size"),
        conv_steps=_conv_steps(fields, "conv_L_cache"),
        conv_keeps_drafts=False,
        num_heads=0,
        head_size=0,
    )
    return _by_word(fields, words, state)


def kimi_linear(fields: Fields) -> Layers:
    """Kimi Linear: Kimi delta attention with a state in float32, and a latent in the other layers."""
    linear = fields.inner("linear_attn_config")
    heads, width = linear.count("num_heads"), linear.count("head_dim")
    num_full, num_states = len(linear.indices("full_attn_layers")), len(linear.indices("kda_layers"))
    if num_full + num_states != fields.count("num_hidden_layers") or not num_full or not num_states:
        raise linear.wrong("kda_layers", "with full_attn_layers, every layer once")
    state = StateLayers(
        num_layers=num_states,
        conv_channels=3 * heads * width,
        conv_steps=_conv_steps(linear, "short_conv_kernel_size"),
        num_heads=heads,
        head_size=width * width,
        state_dtype="float32",
    )
    return (latent_layers(fields, num_full),), (state,)


def _granite_mamba(fields: Fields, inner: int) -> StateLayers:
    heads = fields.count("mamba_n_heads")
    width = fields.get("mamba_d_head")
    head_dim = inner // heads if width is None or width == "auto" else fields.count("mamba_d_head")
    if not head_dim:
        raise fields.wrong("mamba_n_heads", f"at most {inner}, the layer's width,")
    return _mamba2(
        fields, heads, head_dim, fields.count("mamba_n_groups"), fields.count("mamba_d_state"), "mamba_d_conv"
    )


def _mamba2(fields: Fields, heads: int, head_dim: int, groups: int, state_size: int, kernel: str) -> StateLayers:
    return StateLayers(
        num_layers=1,
        conv_channels=heads * head_dim,
        conv_groups=groups,
        conv_group_width=2 * state_size,
        conv_steps=_conv_steps(fields, kernel),
        num_heads=heads,
        head_size=head_dim * state_size,
        num_checkpoints=1,
    )


def _conv_steps(fields: Fields, field: str, default: int | None = None) -> int:
    """Inputs that a convolution with a kernel of this size remembers.

    Raises:
        InputError: it is missing without a default, or does not look back.
    """
    size = fields.count(field, default=default)
    if size < 2:
        raise fields.wrong(field, "a kernel of at least 2")
    return size - 1


def _state_dtype(fields: Fields, field: str) -> str | None:
    value = fields.get(field)
    if value is None or value == "auto":
        return None
    if value not in ("float32", "float16", "bfloat16"):
        raise fields.wrong(field, "float32, float16 or bfloat16")
    return str(value)


def _by_word(fields: Fields, words: Sequence[str], state: StateLayers) -> Layers:
    """The layers that `words` names one by one.

    Raises:
        UnsupportedError: another word, or no layer of one of the two kinds.
    """
    if other := sorted(set(words) - _ATTENTION - _STATE - _NOTHING):
        raise UnsupportedError(f"{fields.source}: layers of type {', '.join(other)}", LOG_HINT)
    num_attention, num_states = (sum(word in kind for word in words) for kind in (_ATTENTION, _STATE))
    if not num_attention:
        raise UnsupportedError(f"{fields.source}: no layer has attention; not covered yet", LOG_HINT)
    states = (state.model_copy(update={"num_layers": num_states}),) if num_states else ()
    return (equal_layers(fields, num_attention),), states
