"""maitre: the right --max-num-seqs and --max-num-batched-tokens for a vLLM server, with reasons."""

__version__ = "0.1.0"
