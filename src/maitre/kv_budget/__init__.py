"""The KV budget: what fills a GPU's memory, how large the KV pool is, and how many sequences it holds."""

from maitre.kv_budget.activations import activation_bytes
from maitre.kv_budget.capacity import SequencesThatFit, max_seqs, max_seqs_of_length
from maitre.kv_budget.estimate import (
    estimate_kv_budget,
    kv_budget_from_blocks,
    kv_bytes_per_token,
    memory_parts,
)
from maitre.kv_budget.weights import weight_bytes_per_gpu

__all__ = [
    "SequencesThatFit",
    "activation_bytes",
    "estimate_kv_budget",
    "kv_budget_from_blocks",
    "kv_bytes_per_token",
    "max_seqs",
    "max_seqs_of_length",
    "memory_parts",
    "weight_bytes_per_gpu",
]
