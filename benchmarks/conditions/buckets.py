"""vLLM's default histogram bounds (`v1/metrics/buckets.py`, 0.32; the same since 0.8.5)."""

from __future__ import annotations

ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
LATENCY_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
"""End-to-end, queue, inference, prefill and decode times."""
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def request_tokens(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 … up to max_model_len: prompt and output tokens of a request."""
    return tuple(
        bound for exponent in range(10) for mantissa in (1, 2, 5) if (bound := mantissa * 10**exponent) <= max_model_len
    )
