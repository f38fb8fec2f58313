"""The shape of a model: what its cache needs, and for a dense transformer the exact arithmetic that follows from it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from maitre.models.layers import AttentionLayers, CacheKind, StateLayers
from maitre.records import Record

Dtype = Literal["bfloat16", "float16", "float32"]

DTYPE_BYTES: dict[Dtype, int] = {"bfloat16": 2, "float16": 2, "float32": 4}


class AttentionGeometry(Record):
    """What decides how many bytes of KV cache one token takes."""

    name: str
    source: str
    """The file that the figures come from."""
    architecture: str
    """The first entry of `architectures`, for example Qwen2ForCausalLM; the model_type where there is none."""
    num_hidden_layers: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    dtype: Dtype
    """The data type that `--dtype auto` loads the weights in."""
    max_position_embeddings: int = Field(ge=1)
    """Longest sequence in tokens."""
    attention: tuple[AttentionLayers, ...]
    """The layers that keep tokens."""
    states: tuple[StateLayers, ...] = ()
    """The layers that keep a state of fixed size."""
    num_mtp_layers: int = Field(default=0, ge=0)
    """Layers for multi-token prediction, which only load with `--speculative-config` and its method mtp."""
    kv_cache_dtype: str = "auto"
    """What `--kv-cache-dtype auto` means for this checkpoint; auto for the model's own data type."""

    @property
    def kind(self) -> CacheKind:
        """What the layers keep of a sequence."""
        if self.states:
            return "hybrid"
        if any(layers.keeps != "all" for layers in self.attention):
            return "sliding"
        return "mla" if any(layers.is_latent for layers in self.attention) else "full"

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one weight or activation."""
        return DTYPE_BYTES[self.dtype]

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Width of all key heads together, which is that of all value heads."""
        return self.num_key_value_heads * self.head_dim


class Checkpoint(AttentionGeometry):
    """A model with weights: layers of attention and a gated MLP."""

    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    quantization: str | None = None
    """`quant_method` of the checkpoint; None when the weights are stored in `dtype`."""
    weight_bytes: int = Field(ge=1)
    """Bytes of all weights in the GPUs together, without tensor parallelism."""
    weight_source: str


class Model(Checkpoint):
    """A dense decoder-only model: gated MLP, RMSNorm before attention and MLP, rotary positions.

    Parameter counts follow the layers as vLLM builds them (`model_executor/models/llama.py`, `qwen2.py`, `qwen3.py`,
    `phi3.py` of 0.26.0).
    """

    tie_word_embeddings: bool
    """The output head shares the weights of the input embedding."""
    qkv_bias: bool = False
    output_bias: bool = False
    """The attention's output projection has a bias."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over each query and key head."""

    @property
    def attention_matrix_parameters(self) -> int:
        """Weights of one layer's query, key, value and output projections, without biases."""
        return self.hidden_size * (2 * self.query_size + 2 * self.key_value_size)

    @property
    def mlp_matrix_parameters(self) -> int:
        """Weights of one layer's gate, up and down projections, without biases."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def layer_vector_parameters(self) -> int:
        """Biases and norms of one layer."""
        qkv = (self.query_size + 2 * self.key_value_size) * self.qkv_bias
        mlp = (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        return qkv + self.hidden_size * self.output_bias + mlp + 2 * self.head_dim * self.qk_norm + 2 * self.hidden_size

    @property
    def embedding_parameters(self) -> int:
        """Weights of the input embedding, and of the output head too where it is a matrix of its own."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    @property
    def num_parameters(self) -> int:
        """All weights, shared ones counted once."""
        layer = self.attention_matrix_parameters + self.mlp_matrix_parameters + self.layer_vector_parameters
        return self.num_hidden_layers * layer + self.embedding_parameters + self.hidden_size

    @property
    def num_active_parameters(self) -> int:
        """Weights that one token passes through: all of them in a dense model."""
        return self.num_parameters

    @property
    def num_matmul_parameters(self) -> int:
        """Weights that take part in a matrix product: all projections and the output head, not the input embedding.

        A forward pass costs 2 floating-point operations for each of them and token (Kaplan et al. 2020, section 2.1).
        """
        layer = self.attention_matrix_parameters + self.mlp_matrix_parameters
        return self.num_hidden_layers * layer + self.vocab_size * self.hidden_size
