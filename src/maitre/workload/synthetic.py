"""Synthetic workloads: lengths drawn from a distribution that a short spec names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from maitre.errors import UsageError
from maitre.records import Record, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

GRAMMAR = (
    "write lognormal:MEDIAN_IN:SIGMA:MEDIAN_OUT:SIGMA such as lognormal:500:0.8:250:0.8 (tokens, and the standard "
    "deviation of their natural logarithm, 0 to 3), or fixed:IN:OUT such as fixed:512:256"
)
_MAX_MEDIAN = 1_000_000
_MAX_SIGMA = 3.0
_MAX_TOKENS = 10_000_000


class LengthSpec(Record):
    """Prompt and output lengths, independent of each other and log-normal; with σ = 0 they are fixed."""

    prompt_median: float
    """Tokens."""
    prompt_sigma: float
    """Standard deviation of ln(prompt tokens)."""
    output_median: float
    output_sigma: float


def looks_like_spec(text: str) -> bool:
    """Whether a text is written like a spec: a word and a colon."""
    return re.match(r"[A-Za-z_]{2,}:", text) is not None


def parse_spec(text: str) -> LengthSpec:
    """Read a spec: `lognormal:500:0.8:250:0.8` or `fixed:512:256`.

    Raises:
        UsageError: the spec is wrong; tells the grammar.
    """
    kind, *fields = text.strip().split(":")
    try:
        values = [float(field) for field in fields]
    except ValueError:
        values = []
    match kind.lower(), values:
        case "lognormal", [prompt_median, prompt_sigma, output_median, output_sigma]:
            pass
        case "fixed", [prompt_median, output_median]:
            prompt_sigma = output_sigma = 0.0
        case _:
            raise UsageError(f"'{text}' is no file and no spec of a workload", GRAMMAR)
    medians, sigmas = (prompt_median, output_median), (prompt_sigma, output_sigma)
    if not all(1 <= value <= _MAX_MEDIAN for value in medians) or not all(0 <= value <= _MAX_SIGMA for value in sigmas):
        raise UsageError(f"'{text}': medians are 1 to {_MAX_MEDIAN:,} tokens, sigmas 0 to {_MAX_SIGMA:g}", GRAMMAR)
    if kind.lower() == "fixed" and not all(value.is_integer() for value in medians):
        raise UsageError(f"'{text}': fixed lengths are whole numbers", GRAMMAR)
    return LengthSpec(
        prompt_median=prompt_median,
        prompt_sigma=prompt_sigma,
        output_median=output_median,
        output_sigma=output_sigma,
    )


def draw_workload(spec: LengthSpec, num_requests: int, seed: int, *, name: str, source: str) -> Workload:
    """Draw a workload without arrival times; the same seed gives the same requests.

    Args:
        spec: the lengths' distribution.
        num_requests: how many, ≥ 1.
        seed: of a numpy PCG64 generator, ≥ 0.
        name: the workload's name.
        source: where the spec comes from, in words.
    """
    rng = np.random.default_rng(seed)
    return Workload(
        name=name,
        source=f"{source}, {num_requests:,} requests drawn (seed {seed})",
        prompt_tokens=_draw(rng, spec.prompt_median, spec.prompt_sigma, num_requests),
        output_tokens=_draw(rng, spec.output_median, spec.output_sigma, num_requests),
    )


def _draw(rng: np.random.Generator, median: float, sigma: float, num_requests: int) -> NDArray[np.int64]:
    """Lengths median · exp(σ z), rounded, within 1 and 10 million. Shape (num_requests,)."""
    lengths = median * np.exp(sigma * rng.standard_normal(num_requests))
    return np.clip(np.rint(lengths), 1, _MAX_TOKENS).astype(np.int64)
