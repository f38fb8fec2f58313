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
    "parse_version",
    "subtracts_cuda_graphs",
    "uses_v2_model_runner",
]
