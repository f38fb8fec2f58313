"""The scheduler's settings, and what of its behaviour changed by version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from maitre.errors import UsageError
from maitre.records import Cell, ServerConfig
from maitre.vllm.defaults import parse_version


@dataclass(frozen=True, slots=True)
class SchedulerRules:
    """Everything that decides which tokens a step computes. Versions are those of `v1/core/sched/scheduler.py`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int
    block_size: int = 16
    enable_prefix_caching: bool = False
    whole_prompt_gate: bool = True
    """Admit a request only if blocks for all its tokens are free (`scheduler_reserve_full_isl`, vLLM 0.19+)."""
    watermark: float = 0.0
    """Share of the pool that an admission leaves free while others run (`--watermark`, vLLM 0.24+)."""
    async_scheduling: bool = True
    """Step k+1 is scheduled before the output of step k is known (the default from vLLM 0.14)."""
    long_prefill_token_threshold: int = 0
    exempt_lone_request: bool = False
    """The threshold above does not apply to the only request there is (vLLM 0.31+)."""
    priority_policy: bool = False
    reuse_unhashed_first: bool = True
    """Blocks that no prefix can hit are reused first (vLLM 0.23+); before, every block queued as it was released."""

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}); vLLM refuses to start otherwise",
                "raise the token budget or lower max_num_seqs",
            )

    @property
    def num_usable_blocks(self) -> int:
        """Blocks for sequences: vLLM keeps one, the null block, for itself."""
        return self.num_gpu_blocks - 1

    @property
    def in_flight_steps(self) -> int:
        """Steps from the schedule of a token to the schedule that sees its output: 2 with async scheduling, else 1."""
        return 2 if self.async_scheduling else 1

    @classmethod
    def of_version(cls, vllm_version: str, cell: Cell, num_gpu_blocks: int, **settings: Any) -> SchedulerRules:
        """The rules that a version of vLLM follows by default; `settings` are fields set by hand."""
        version = parse_version(vllm_version)
        by_version: dict[str, Any] = {
            "whole_prompt_gate": version >= (0, 19),
            "async_scheduling": version >= (0, 14),
            "exempt_lone_request": version >= (0, 31),
            "reuse_unhashed_first": version >= (0, 23),
        }
        return cls(cell.max_num_seqs, cell.max_num_batched_tokens, num_gpu_blocks, **by_version | settings)

    @classmethod
    def of_server(cls, server: ServerConfig, num_gpu_blocks: int) -> SchedulerRules:
        """The rules that a server follows."""
        if server.watermark and parse_version(server.vllm_version) < (0, 24):
            raise UsageError(f"vLLM {server.vllm_version} has no --watermark", "it came with vLLM 0.24; leave it out")
        return cls.of_version(
            server.vllm_version,
            server.cell,
            num_gpu_blocks,
            block_size=server.block_size,
            enable_prefix_caching=server.enable_prefix_caching,
            watermark=server.watermark,
            long_prefill_token_threshold=server.long_prefill_token_threshold,
            priority_policy=server.scheduling_policy == "priority",
        )
