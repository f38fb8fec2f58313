"""A server and its memory."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from maitre.records.record import Record


class Cell(Record):
    """One setting of the two dials."""

    max_num_seqs: int = Field(ge=1)
    max_num_batched_tokens: int = Field(ge=1)

    def __str__(self) -> str:
        return f"{self.max_num_seqs}x{self.max_num_batched_tokens}"


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
        """The same server with the dials turned to `cell`."""
        return self.model_copy(update=cell.model_dump())


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
