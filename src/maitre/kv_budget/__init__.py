"""The KV budget: what fills a GPU's memory, how large the KV pool is, and how many sequences it holds."""

from maitre.kv_budget.activations import ProfileRun, activation_bytes
from maitre.kv_budget.capacity import SequencesThatFit, max_seqs, max_seqs_of_length
from maitre.kv_budget.estimate import (
    GRAPH_BYTES_PER_LAYER,
    NON_TORCH_BYTES,
    estimate_kv_budget,
    kv_budget_from_blocks,
    kv_bytes_per_token,
    memory_parts,
    profile_run,
)
from maitre.kv_budget.weights import weight_bytes_per_gpu

__all__ = [
    "GRAPH_BYTES_PER_LAYER",
    "NON_TORCH_BYTES",
    "ProfileRun",
    "SequencesThatFit",
    "activation_bytes",
    "estimate_kv_budget",
    "kv_budget_from_blocks",
    "kv_bytes_per_token",
    "max_seqs",
    "max_seqs_of_length",
    "memory_parts",
    "profile_run",
    "weight_bytes_per_gpu",
]
