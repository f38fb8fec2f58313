"""What vLLM's start-up does to memory, by version.

Read in the source of 0.9.2, 0.11.0, 0.19.1, 0.22.1 to 0.28.0 and 0.33.0.
"""

from __future__ import annotations

from maitre.records import Cell
from maitre.vllm.defaults import Version, capture_sizes, parse_version

_V2_RUNNER_DENSE: dict[Version, frozenset[str]] = {
    (0, 22, 0): frozenset({"Qwen3ForCausalLM"}),
    (0, 23, 0): frozenset({"Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"}),
}
"""Dense architectures that Model Runner V2 serves by default, from a version on; all of them from 0.25
(`config/vllm.py`, `_is_default_v2_model_runner_model` of 0.22.1, 0.23.0, 0.24.0, 0.25.1)."""


def uses_v2_model_runner(version: str, architecture: str) -> bool:
    """Whether this dense architecture runs on Model Runner V2, which has a leaner sampler."""
    parsed = parse_version(version)
    if parsed >= (0, 25, 0):
        return True
    served = [names for since, names in _V2_RUNNER_DENSE.items() if parsed >= since]
    return bool(served) and architecture in served[-1]


def subtracts_cuda_graphs(version: str, architecture: str) -> bool:
    """Whether the KV pool is cut by an estimate of the CUDA graphs' memory.

    Runner V1 does so from 0.20 on (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS); runner V2's estimate is 0 up to at
    least 0.28 and real in 0.33 (`v1/worker/gpu/model_runner.py`, `profile_cudagraph_memory`). Where it is not
    subtracted, the graphs live beside the requested memory.
    """
    parsed = parse_version(version)
    if uses_v2_model_runner(version, architecture):
        return parsed > (0, 28, 99)
    return parsed >= (0, 20, 0)


def num_cuda_graphs(version: str, cell: Cell) -> int:
    """Graphs that vLLM captures: a piecewise one for each size, and from 0.11 on a full one up to max_num_seqs.

    `cudagraph_mode` FULL_AND_PIECEWISE is the default from 0.11.0 on (`config/compilation.py`).
    """
    sizes = capture_sizes(version, cell)
    full = sum(size <= cell.max_num_seqs for size in sizes) if parse_version(version) >= (0, 11, 0) else 0
    return len(sizes) + full


def sampler_bytes_per_logit(version: str, architecture: str, dtype_bytes: int) -> int:
    """Bytes that the profile run's sampler holds at once for each sequence and entry of the vocabulary.

    Runner V1 adds three float32 copies to the logits: cast, probabilities and noise (`v1/sample/sampler.py`,
    `v1/sample/ops/topk_topp_sampler.py`). Runner V2 adds one up to 0.25 and in 0.27; in 0.26, and from 0.28 on where
    no request asks for it, it works in place (`v1/worker/gpu/sample/sampler.py`, `apply_sampling_params`).
    """
    if not uses_v2_model_runner(version, architecture):
        return dtype_bytes + 3 * 4
    minor = parse_version(version)[:2]
    return dtype_bytes + (4 if minor <= (0, 25) or minor == (0, 27) else 0)


def keeps_large_blocks_whole(version: str) -> bool:
    """Whether weights are loaded with PyTorch's max_split_size at 20 MiB, so that larger blocks are never split.

    `v1/worker/gpu_worker.py`, `load_model`: there in 0.22.1, not in 0.19.1.
    """
    return parse_version(version) >= (0, 22, 0)
