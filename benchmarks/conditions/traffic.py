"""Requests over time: phases of traffic, each with its own lengths and its own rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maitre.records import Workload
from maitre.workload.synthetic import LengthSpec

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Phase:
    """Traffic that stays as it is for a while."""

    lengths: LengthSpec
    rate_rps: float
    duration_s: float
    gap_cv2: float = 1.0
    """Squared coefficient of variation of the gaps between arrivals: 1 is a Poisson process, more comes in bunches."""


def draw_arrivals(phases: Sequence[Phase], max_model_len: int, generator: np.random.Generator) -> Workload | None:
    """The requests of successive phases; gaps are gamma distributed. None when nobody comes.

    Args:
        phases: in their order in time.
        max_model_len: tokens; longer requests are cut to it, as their clients would have to.
        generator: of gaps and lengths.
    """
    arrivals, prompts, outputs = [], [], []
    start_s = 0.0
    for phase in phases:
        times = start_s + _renewals(phase, generator)
        prompt, output = draw_lengths(phase.lengths, len(times), max_model_len, generator)
        arrivals.append(times)
        prompts.append(prompt)
        outputs.append(output)
        start_s += phase.duration_s
    if not sum(map(len, arrivals)):
        return None
    return _workload(np.concatenate(prompts), np.concatenate(outputs), np.concatenate(arrivals))


def draw_at_once(lengths: LengthSpec, num: int, max_model_len: int, generator: np.random.Generator) -> Workload:
    """Requests without arrival times, for clients that send the next one when the last is answered."""
    return _workload(*draw_lengths(lengths, num, max_model_len, generator), None)


def draw_lengths(
    lengths: LengthSpec, num: int, max_model_len: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prompt and output tokens, each of shape (num,), ≥ 1 and together within max_model_len."""
    prompt = lengths.prompt_median * np.exp(lengths.prompt_sigma * generator.standard_normal(num))
    output = lengths.output_median * np.exp(lengths.output_sigma * generator.standard_normal(num))
    prompt_tokens = np.clip(np.rint(prompt), 1, max_model_len // 2).astype(np.int64)
    output_tokens = np.clip(np.rint(output), 1, max_model_len - prompt_tokens).astype(np.int64)
    return prompt_tokens, output_tokens


def _renewals(phase: Phase, generator: np.random.Generator) -> FloatArray:
    """Arrival times within a phase, from its start on."""
    expected = phase.rate_rps * phase.duration_s
    if expected <= 0:
        return np.array([])
    num = int(expected + 10 * (expected * phase.gap_cv2) ** 0.5 + 10)
    gaps_s = generator.gamma(1 / phase.gap_cv2, phase.gap_cv2 / phase.rate_rps, size=num)
    times: FloatArray = np.cumsum(gaps_s)
    return times[times < phase.duration_s]


def _workload(prompt: NDArray[np.int64], output: NDArray[np.int64], arrival_s: FloatArray | None) -> Workload:
    return Workload(name="condition", source="drawn", prompt_tokens=prompt, output_tokens=output, arrival_s=arrival_s)
