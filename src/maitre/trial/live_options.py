"""How a real server is measured."""

from __future__ import annotations

from dataclasses import dataclass

from maitre.slo import LatencyTarget


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How to measure."""

    restart: bool = False
    """A fresh server for each cell, instead of turning the dials of one."""
    open_loop: bool = False
    """Requests come at the workload's own times."""
    client_latency: bool = False
    """Have tokens streamed, and take down when the client sees them; costs both sides CPU time."""
    targets: tuple[LatencyTarget, ...] = ()
    """Latencies that every trial is held against."""
    seed: int = 0
    """Decides the content of the prompts."""
    vocab_size: int | None = None
    """Token ids stay below; None for the model's own."""
    num_gpu_blocks: int | None = None
    """Hold the KV pool to this size."""
    ready_timeout_s: float = 1800.0
    request_timeout_s: float = 3600.0
    stall_timeout_s: float = 300.0
    """How long a server may do nothing while requests are under way, before it counts as hung."""
