"""The memory that vLLM sets aside for LoRA adapters: slots of the largest rank, whatever the adapters are."""

from __future__ import annotations

from pydantic import Field

from maitre.errors import UnsupportedError
from maitre.kv_budget.weights import kv_heads_per_gpu
from maitre.models import Checkpoint, Model
from maitre.records import Record

FUSED_PROJECTIONS = {"Phi3ForCausalLM"}
"""Architectures whose query, key and value share one projection in the checkpoint, and gate and up another."""

ADAPTED_EMBEDDINGS = {"GraniteForCausalLM", "LlamaForCausalLM", "Phi3ForCausalLM", "Qwen3ForCausalLM"}
"""Architectures whose embedding and output head take adapters too (vLLM 0.32.0, `embedding_modules`)."""


class LoraSlots(Record):
    """`--enable-lora` and its flags, each at vLLM's default."""

    max_loras: int = Field(default=1, ge=1)
    max_lora_rank: int = Field(default=16, ge=1)


def lora_bytes(model: Checkpoint, slots: LoraSlots, tensor_parallel_size: int, dtype_bytes: int) -> int:
    """Bytes of the slots on one GPU: two matrices for every projection, of the largest rank.

    vLLM 0.32.0, `lora/layers/*.py`, `create_lora_weights`; the sizes agree with those of six architectures built on a
    CPU. The side of a projection that tensor parallelism does not share out is whole on each GPU.

    Args:
        model: the model.
        slots: how many adapters, and their largest rank.
        tensor_parallel_size: GPUs that share the model.
        dtype_bytes: bytes of a weight.

    Raises:
        UnsupportedError: a model whose projections are not counted.
    """
    if not isinstance(model, Model):
        raise UnsupportedError(f"{model.name}: the size of its LoRA adapters is not known", "leave LoRA out")
    tp, hidden, fused = tensor_parallel_size, model.hidden_size, model.architecture in FUSED_PROJECTIONS
    query, mlp = model.query_size // tp, model.intermediate_size // tp
    key_value = kv_heads_per_gpu(model.num_key_value_heads, tp) * model.head_dim
    width = (1 if fused else 3) * hidden + query + 2 * key_value  # query, key and value
    width += query + hidden  # output
    width += (1 if fused else 2) * hidden + 2 * mlp  # gate and up
    width += mlp + hidden  # down
    total = model.num_hidden_layers * width
    if model.architecture in ADAPTED_EMBEDDINGS:
        total += 2 * (model.vocab_size + hidden)
    return slots.max_loras * slots.max_lora_rank * total * dtype_bytes
