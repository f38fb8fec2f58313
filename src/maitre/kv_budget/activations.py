"""The activation peak of vLLM's profile run, which is what a larger token budget takes from the KV pool.

Checked against eleven starts of vLLM 0.26.0 on an H200 (Qwen2.5 1.5B, 7B, 14B, 32B; 2,048 to 65,536 tokens; 32 to 1,024
sequences): the blocks agree to 0.005 %, three constants fitted to them. Not checked with tensor parallelism.
"""

from __future__ import annotations

from maitre.models import Checkpoint
from maitre.records import Record
from maitre.units import MIB

WORKSPACE_BYTES = 33 * MIB
"""What stays allocated while the layers run: cuBLAS's workspace (32 MiB on Hopper) and small buffers. Measured."""

COMPILED_BYTES = 59 * MIB
"""What a start that compiles adds to the layers' peak. Measured."""


class ProfileRun(Record):
    """The sizes of one profile run, as vLLM makes it at start-up."""

    num_tokens: int
    """max_num_batched_tokens: the tokens of its forward pass."""
    num_rows: int
    """Sequences that the sampler gets: min(max_num_seqs, max_num_batched_tokens)."""
    tensor_parallel_size: int = 1
    dtype_bytes: int = 2
    bytes_per_logit: int = 2
    """See `maitre.vllm.sampler_bytes_per_logit`."""
    compiles: bool = True
    """False when vLLM finds its compiled graphs in the cache, from the second start of the same shape on."""


def activation_bytes(model: Checkpoint, run: ProfileRun) -> tuple[int, str]:
    """The peak in bytes on one GPU, and the formula that gives it.

    The run is one forward pass, then the sampler (`v1/worker/gpu/model_runner.py`, `profile_run`); the first forward
    pass compiles the model. The three peaks come one after another, so the largest counts.
    """
    peaks = [forward_bytes(model, run), sampler_bytes(model, run)]
    if run.compiles:
        peaks.append(compile_bytes(model, run))
    return max(peaks, key=lambda peak: peak[0])


def forward_bytes(model: Checkpoint, run: ProfileRun) -> tuple[int, str]:
    """The layers' peak: gate, up and their product, beside three rows of hidden states."""
    width = 3 * model.intermediate_size // run.tensor_parallel_size + 3 * model.hidden_size
    fixed = WORKSPACE_BYTES + COMPILED_BYTES * run.compiles
    formula = f"{run.num_tokens:,} tokens × (3·intermediate/TP + 3·hidden) × {run.dtype_bytes} B + {fixed // MIB} MiB"
    return run.num_tokens * width * run.dtype_bytes + fixed, formula


def sampler_bytes(model: Checkpoint, run: ProfileRun) -> tuple[int, str]:
    """The sampler's peak: each sequence's logits and last hidden state, beside the hidden states of all tokens.

    Measured: an RTX 4090 loses 3,744 tokens of Qwen3-8B's pool between 2,048 tokens, where the sampler's 256 rows
    decide, and 8,192, where the layers do; the formulas give 3,750 (vLLM PR #48322).
    """
    hidden = (run.num_tokens + run.num_rows) * model.hidden_size * run.dtype_bytes
    logits = run.num_rows * model.vocab_size * run.bytes_per_logit
    formula = (
        f"{run.num_tokens:,} tokens × hidden × {run.dtype_bytes} B + {run.num_rows:,} rows × vocabulary × "
        f"{run.bytes_per_logit} B + {WORKSPACE_BYTES // MIB} MiB"
    )
    return hidden + logits + WORKSPACE_BYTES, formula


def compile_bytes(model: Checkpoint, run: ProfileRun) -> tuple[int, str]:
    """The peak while the model is compiled: a copy of the embedding and two hidden states fit what was measured.

    Three starts that compiled, to 0.005 GiB: Qwen2.5-14B at 2,048 and 8,192 tokens, Qwen2.5-7B at 8,192.
    """
    embedding = model.vocab_size // run.tensor_parallel_size * model.hidden_size
    formula = f"while compiling: (vocabulary/TP + 2 · {run.num_tokens:,} tokens) × hidden × {run.dtype_bytes} B"
    return (embedding + 2 * run.num_tokens * model.hidden_size) * run.dtype_bytes, formula
