"""Units: SI and bytes inside, people's spelling at the edges."""

from __future__ import annotations

import re

from maitre.errors import UsageError

KIB, MIB, GIB = 2**10, 2**20, 2**30

_TOKEN_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}
_SECOND_SUFFIXES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def parse_token_count(text: str) -> int:
    """Read a number of tokens as vLLM does: `8k` is 8,000 and `8K` is 8,192 (vLLM `human_readable_int`, 0.8.5+)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text.strip())
    if not match or not (value := float(match[1]) * _TOKEN_SUFFIXES[match[2]]).is_integer() or not 1 <= value < 2**31:
        raise UsageError(f"'{text}' is not a number of tokens", "write 8192, 8k (8,000) or 8K (8,192)")
    return int(value)


def parse_duration_s(text: str) -> float:
    """Read a duration such as `500ms`, `2s` or `1.5min`; a bare number is seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|h)?", text.strip())
    if not match:
        raise UsageError(f"'{text}' is not a duration", "write 500ms, 2s or 1.5min")
    return float(match[1]) * _SECOND_SUFFIXES[match[2] or "s"]


def format_bytes(num_bytes: float) -> str:
    """Write bytes for people: `196,608 B` below a MiB, `28.02 GiB` above a GiB."""
    if abs(num_bytes) >= GIB:
        return f"{num_bytes / GIB:,.2f} GiB"
    if abs(num_bytes) >= MIB:
        return f"{num_bytes / MIB:,.1f} MiB"
    return f"{num_bytes:,.0f} B"


def format_seconds(seconds: float) -> str:
    """Write a duration for people with three significant figures: `430 µs`, `27.1 ms`, `1.24 s`, `3 min 20 s`."""
    if seconds < 999.5e-6:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"
