"""The KV budget: what fills a GPU's memory, how large the KV pool is, and how many sequences it holds."""

from maitre.kv_budget.activations import ProfileRun, activation_bytes
from maitre.kv_budget.capacity import SequencesThatFit, max_seqs, max_seqs_of_length
from maitre.kv_budget.estimate import (
    GRAPH_BYTES_PER_LAYER,
    NON_TORCH_BYTES,
    Extras,
    cache_flags,
    estimate_kv_budget,
    kv_bytes_per_token,
    max_in_flight_tokens,
    memory_parts,
    profile_run,
)
from maitre.kv_budget.layout import CacheFlags, KvLayout, Speculation, kv_layout
from maitre.kv_budget.lora import LoraSlots, lora_bytes
from maitre.kv_budget.pages import LayerPages
from maitre.kv_budget.pool import GroupedKvBudget, kv_budget_from_blocks, pool_of
from maitre.kv_budget.weights import weight_bytes_per_gpu

__all__ = [
    "GRAPH_BYTES_PER_LAYER",
    "NON_TORCH_BYTES",
    "CacheFlags",
    "Extras",
    "GroupedKvBudget",
    "KvLayout",
    "LayerPages",
    "LoraSlots",
    "ProfileRun",
    "SequencesThatFit",
    "Speculation",
    "activation_bytes",
    "cache_flags",
    "estimate_kv_budget",
    "kv_budget_from_blocks",
    "kv_bytes_per_token",
    "kv_layout",
    "lora_bytes",
    "max_in_flight_tokens",
    "max_seqs",
    "max_seqs_of_length",
    "memory_parts",
    "pool_of",
    "profile_run",
    "weight_bytes_per_gpu",
]
