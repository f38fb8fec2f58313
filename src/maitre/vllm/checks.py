"""Settings that vLLM refuses to start with, said before it is started."""

from __future__ import annotations

from maitre.errors import UsageError
from maitre.records import ServerConfig
from maitre.vllm.defaults import parse_version


def check_server(server: ServerConfig, max_position_embeddings: int | None = None) -> None:
    """Refuse what vLLM refuses.

    Sources: `config/scheduler.py`, `verify_max_model_len`; `config/model.py`; `v1/attention/backends/flash_attn.py`.

    Args:
        server: the settings.
        max_position_embeddings: longest sequence that the model was made for, where known.

    Raises:
        UsageError: names the two values that contradict each other.
    """
    version = parse_version(server.vllm_version)
    seqs, tokens, length = server.max_num_seqs, server.max_num_batched_tokens, server.max_model_len
    if tokens < seqs:
        raise UsageError(
            f"max_num_batched_tokens {tokens:,} is smaller than max_num_seqs {seqs:,}: every running sequence needs at "
            "least one token a step",
            f"raise --max-num-batched-tokens to {seqs:,} or lower --max-num-seqs to {tokens:,}",
        )
    if server.block_size % 16:
        raise UsageError(
            f"block_size {server.block_size} is no multiple of 16, which vLLM's attention kernels need",
            "leave --block-size out: 16 is the default",
        )
    threshold = server.long_prefill_token_threshold
    if version >= (0, 27, 0) and threshold > length:
        raise UsageError(
            f"long_prefill_token_threshold {threshold:,} is larger than max_model_len {length:,}",
            f"lower it to {length:,} or less; 0 switches it off",
        )
    if max_position_embeddings is not None and length > max_position_embeddings:
        raise UsageError(
            f"max_model_len {length:,} is longer than the {max_position_embeddings:,} positions of {server.model}",
            f"lower --max-model-len to {max_position_embeddings:,}, or extend the model with rope scaling",
        )
