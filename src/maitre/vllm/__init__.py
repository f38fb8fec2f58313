"""What maitre knows of vLLM, by version."""

from maitre.vllm.checks import check_server
from maitre.vllm.defaults import (
    NEWEST_READ,
    OLDEST,
    Context,
    Version,
    capture_sizes,
    default_cell,
    default_gpu_memory_utilization,
    parse_version,
)
from maitre.vllm.memory import (
    keeps_large_blocks_whole,
    num_cuda_graphs,
    sampler_bytes_per_logit,
    subtracts_cuda_graphs,
    uses_v2_model_runner,
)

__all__ = [
    "NEWEST_READ",
    "OLDEST",
    "Context",
    "Version",
    "capture_sizes",
    "check_server",
    "default_cell",
    "default_gpu_memory_utilization",
    "keeps_large_blocks_whole",
    "num_cuda_graphs",
    "parse_version",
    "sampler_bytes_per_logit",
    "subtracts_cuda_graphs",
    "uses_v2_model_runner",
]
