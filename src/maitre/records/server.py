"""A server and its memory."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from maitre.records.record import Record

Flags = tuple[tuple[str, str], ...]
"""Other settings of vLLM in a fixed order: the field of `ServerConfig` and its value."""


class AtCell(Record):
    """What belongs to one setting."""

    max_num_seqs: int = Field(ge=1)
    max_num_batched_tokens: int = Field(ge=1)
    flags: Flags = ()
    """What else is set otherwise than on the present server; it takes a fresh start."""

    @property
    def cell(self) -> Cell:
        """The setting."""
        return Cell(
            max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.max_num_batched_tokens, flags=self.flags
        )

    @model_serializer(mode="wrap")
    def _without_empty_flags(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        if not self.flags:
            fields.pop("flags", None)
        return fields


class Cell(AtCell):
    """One setting of the dials."""

    def __str__(self) -> str:
        dials = f"{self.max_num_seqs}x{self.max_num_batched_tokens}"
        return " ".join([dials, *(f"{name}={value}" for name, value in self.flags)])

    @property
    def short(self) -> str:
        """For a table: the other flags by their values only."""
        dials = f"{self.max_num_seqs}x{self.max_num_batched_tokens}"
        return " ".join([dials, *(value for _, value in self.flags)])


class ServerConfig(Record):
    """A vLLM server's settings, in vLLM's own words; what is not here is left at vLLM's default."""

    model: str
    vllm_version: str = "0.26.0"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = Field(default=1, ge=1)
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    max_model_len: int = Field(ge=1)
    block_size: int = Field(default=16, ge=1)
    max_num_seqs: int = Field(ge=1)
    max_num_batched_tokens: int = Field(ge=1)
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = Field(default=0, ge=0)
    watermark: float = Field(default=0.0, ge=0, lt=1)
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"

    @property
    def cell(self) -> Cell:
        """The two dials."""
        return Cell(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.max_num_batched_tokens)

    def at(self, cell: Cell) -> ServerConfig:
        """The same server at another setting."""
        dials = {"max_num_seqs": cell.max_num_seqs, "max_num_batched_tokens": cell.max_num_batched_tokens}
        if not cell.flags:
            return self.model_copy(update=dials)
        return ServerConfig.model_validate(self.model_dump() | dials | dict(cell.flags))


class MemoryPart(Record):
    """One share of a GPU's memory."""

    name: str
    num_bytes: int
    source: str
    """The formula or the document that the figure comes from."""


class KvBudget(Record):
    """The KV pool of one GPU at one cell. `num_gpu_blocks` counts vLLM's null block; one block less is usable."""

    kv_bytes_per_token: int | None
    """Bytes that one more token adds on one GPU; None when only the number of blocks is known."""
    fixed_bytes_per_seq: int = 0
    num_gpu_blocks: int = Field(ge=2)
    block_size: int = Field(ge=1)
    parts: tuple[MemoryPart, ...] = ()
    source: str

    @property
    def kv_tokens(self) -> int:
        """Tokens that the usable blocks hold."""
        return (self.num_gpu_blocks - 1) * self.block_size
