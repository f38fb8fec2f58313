"""What a model's layers keep of a sequence: keys and values of tokens, one latent a token, or a state."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from maitre.records import Record

CacheKind = Literal["full", "mla", "sliding", "hybrid"]
"""full: keys and values of every token. mla: one latent a token. sliding: some layers keep a window or a chunk.
hybrid: some layers keep a recurrent state."""

Keeps = Literal["all", "window", "chunk"]


class AttentionLayers(Record):
    """Equal attention layers, and how much they keep of each token."""

    num_layers: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    """Heads to share out over the GPUs; 1 for a latent, which every GPU keeps whole."""
    head_dim: int = Field(ge=1)
    value_head_dim: int = Field(ge=0)
    """0 for a latent: key and value are computed from it."""
    keeps: Keeps = "all"
    span: int = Field(default=0, ge=0)
    """Tokens of the window or the chunk; 0 for layers that keep all."""
    is_latent: bool = False
    index_head_dim: int = Field(default=0, ge=0)
    """Width of the key that a sparse-attention index keeps beside the latent (DeepSeek-V3.2); 0 for none."""


class StateLayers(Record):
    """Equal recurrent layers: a convolution's last inputs and a recurrent state, of fixed size.

    The shapes are those of vLLM 0.32.0, `model_executor/layers/mamba/mamba_utils.py`, `MambaStateShapeCalculator`.
    """

    num_layers: int = Field(ge=1)
    conv_channels: int = Field(ge=1)
    """Channels of the convolution that are shared out over the GPUs, without those of the groups below."""
    conv_groups: int = Field(default=0, ge=0)
    """Mamba-2's groups: extended where they cannot be shared out evenly."""
    conv_group_width: int = Field(default=0, ge=0)
    conv_steps: int = Field(ge=1)
    """Inputs that the convolution remembers: its kernel size − 1."""
    conv_keeps_drafts: bool = True
    """One input more for each speculative token."""
    num_heads: int = Field(ge=0)
    """Heads of the recurrent state, shared out over the GPUs; 0 for a convolution alone."""
    head_size: int = Field(ge=0)
    """Numbers in the state of one head."""
    state_dtype: str | None = None
    """Data type of the recurrent state; None for the model's own."""
    num_checkpoints: int = Field(default=0, ge=0)
    """States beyond two that prefix caching keeps (vLLM 0.32.0, `layers/mamba/mamba_mixer2.py`)."""
