"""The KV pool of a server, by its layout: plain, or shared by groups of layers that keep different parts."""

from __future__ import annotations

from maitre.errors import UsageError
from maitre.kv_budget.layout import CacheFlags, KvLayout, kv_layout
from maitre.models import AttentionGeometry
from maitre.records import KvBudget, MemoryPart


class GroupedKvBudget(KvBudget):
    """A pool that several block tables share: a token costs more or less than one block in `block_size`."""

    layout: KvLayout
    max_model_len: int
    in_flight_tokens: int
    """Tokens scheduled and not yet settled that vLLM reserves for; see `KvLayout.blocks_reserved`."""

    @property
    def kv_tokens(self) -> int:
        """Tokens of sequences of max_model_len that the usable blocks hold, as vLLM prints them.

        vLLM 0.32.0, `v1/core/kv_cache_utils.py`, `get_kv_cache_capacity`.
        """
        needed = self.layout.blocks_reserved(self.max_model_len, self.in_flight_tokens)
        return (self.num_gpu_blocks - 1) * self.max_model_len // needed


def pool_of(
    layout: KvLayout,
    num_gpu_blocks: int,
    *,
    max_model_len: int,
    in_flight_tokens: int,
    source: str,
    parts: tuple[MemoryPart, ...] = (),
) -> KvBudget:
    """The record of a pool of so many blocks."""
    plain = KvBudget(
        kv_bytes_per_token=layout.kv_bytes_per_token,
        fixed_bytes_per_seq=layout.fixed_bytes_per_seq(max_model_len, in_flight_tokens),
        num_gpu_blocks=num_gpu_blocks,
        block_size=layout.block_size,
        parts=parts,
        source=source,
    )
    if layout.kind == "full" and not layout.num_lookahead_tokens:
        return plain
    shared = {"layout": layout, "max_model_len": max_model_len, "in_flight_tokens": in_flight_tokens}
    return GroupedKvBudget(**plain.model_dump(), **shared)


def kv_budget_from_blocks(
    num_gpu_blocks: int,
    block_size: int,
    model: AttentionGeometry | None = None,
    *,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
    dtype: str = "auto",
    flags: CacheFlags | None = None,
    max_model_len: int | None = None,
    in_flight_tokens: int = 1,
) -> KvBudget:
    """The KV pool that a running vLLM reports (`vllm:cache_config_info`, or its start-up log).

    Args:
        num_gpu_blocks: as vLLM counts them, the null block included.
        block_size: tokens in a block; raised as vLLM raises it where the model has recurrent states.
        model: gives the bytes a token and what else its layers keep, with the settings below.
        kv_cache_dtype: of the cache.
        tensor_parallel_size: GPUs that share the model.
        dtype: of the weights.
        flags: all of vLLM's flags for the cache, in place of the three above and `block_size`.
        max_model_len: longest sequence; the model's own where None.
        in_flight_tokens: tokens that a sequence may have scheduled at once; see `KvLayout.blocks_reserved`.

    Raises:
        UsageError: fewer than two blocks, or a block without tokens.
    """
    if num_gpu_blocks < 2 or block_size < 1:
        raise UsageError(
            f"{num_gpu_blocks} blocks of {block_size} tokens make no KV pool",
            "take num_gpu_blocks and block_size from vLLM's log or its vllm:cache_config_info metric",
        )
    source = f"{num_gpu_blocks:,} blocks of {block_size} tokens, as given"
    if model is None:
        return KvBudget(kv_bytes_per_token=None, num_gpu_blocks=num_gpu_blocks, block_size=block_size, source=source)
    flags = flags or CacheFlags(
        kv_cache_dtype=kv_cache_dtype, dtype=dtype, tensor_parallel_size=tensor_parallel_size, block_size=block_size
    )
    length = max_model_len or model.max_position_embeddings
    layout = kv_layout(model, flags)
    return pool_of(layout, num_gpu_blocks, max_model_len=length, in_flight_tokens=in_flight_tokens, source=source)
