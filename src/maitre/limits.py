"""Physical limits of throughput: what no setting of any scheduler can pass.

For a request of I prompt and O output tokens, on t GPUs with F FLOP/s and W bytes/s each (NanoFlow, arXiv 2408.12757,
section 3, with the lengths of the workload in place of its means):

    C      2·P·(I + O) + 4·L·H·d·(I²/2 + I·O + O²/2)       FLOPs
    M      O·weights/B + κ·(I·O + O²/2)                     bytes; B sequences share one reading of the weights
    compute bound      Σ(I + O) · t·F / ΣC
    perfect overlap    Σ(I + O) · t / max(ΣC/F, ΣM/W)
    one after another  Σ(I + O) · t / (ΣC/F + ΣM/W)
"""

from __future__ import annotations

import numpy as np

from maitre.gpus import Gpu
from maitre.models import Model
from maitre.records import KvBudget, Limits, Workload


def physical_limits(
    workload: Workload, model: Model, gpu: Gpu, budget: KvBudget, max_num_seqs: int, tensor_parallel_size: int
) -> Limits:
    """Upper bounds in total tokens/s over all GPUs.

    Args:
        workload: its lengths.
        model: its geometry.
        gpu: its peak rates.
        budget: the KV pool of one GPU; bounds how many sequences can share a reading of the weights.
        max_num_seqs: the most slots of the grid.
        tensor_parallel_size: number of GPUs.
    """
    prompt, output = workload.prompt_tokens.astype(float), workload.output_tokens.astype(float)
    pairs = prompt**2 / 2 + prompt * output + output**2 / 2
    flops = 2 * model.num_matmul_parameters * (prompt + output)
    flops += 4 * model.num_hidden_layers * model.query_size * pairs
    num_sharing = min(max_num_seqs, budget.kv_tokens / float(np.mean(prompt + output / 2)))
    kv_bytes = (budget.kv_bytes_per_token or 0) * tensor_parallel_size
    weight_bytes = model.weight_bytes * model.num_matmul_parameters / model.num_parameters
    moved = output * weight_bytes / max(num_sharing, 1.0) + kv_bytes * (prompt * output + output**2 / 2)
    compute_s = float(flops.sum()) / gpu.half_flops_per_s / tensor_parallel_size
    memory_s = float(moved.sum()) / gpu.memory_bandwidth_bytes_per_s / tensor_parallel_size
    return Limits(
        compute_tokens_per_s=workload.total_tokens / compute_s,
        overlap_tokens_per_s=workload.total_tokens / max(compute_s, memory_s),
        sequential_tokens_per_s=workload.total_tokens / (compute_s + memory_s),
    )
