"""Do steps with prompts in them stall the sequences that decode? Told by logged steps, which show the cause itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from maitre.metric_series import FloatArray
from maitre.records import Record
from maitre.units import format_seconds
from maitre.verify.modes import modality_text as text
from maitre.verify.modes.modality import LEAST_SAMPLES, Modality, Mode
from maitre.verify.modes.valley import LEAST_RATIO, LEAST_SHARE

BLOCK_STEPS = 16
"""Steps that are summed before times are compared with tokens: with asynchronous scheduling a prefill's time leaks into
the steps beside it, and sums over a dozen steps are right."""
LEAST_BLOCKS = 10
LAGS = (0, -1, 1)
"""Where a step's time may be written: with its own line, or with the one before or after it."""


class IterationModes(Record):
    """Steps with prompts against steps without, weighed by the sequences that wait for them."""

    modality: Modality
    num_steps: int
    """That decode at least one sequence."""
    with_prompts_share: float = 0.0
    """Share of the tokens that came from steps with prompts in them, 0 to 1."""
    decode_only_s: float | None = None
    """Median of the steps without; None without any."""
    with_prompts_s: float | None = None
    """Median of the steps with prompts; None without any."""
    s_per_context_token: float | None = None
    """What a prompt token adds to its step; None where steps do not tell."""
    lag: int = 0
    """By how many lines the time of a step stands after its counts: not 0 with asynchronous scheduling."""


def modes_from_iterations(
    num_context_tokens: ArrayLike, num_generation_requests: ArrayLike, elapsed_s: ArrayLike, engine: ArrayLike = ()
) -> IterationModes:
    """Compare the steps that vLLM logs under `--enable-logging-iteration-details` (0.14 and later).

    Args:
        num_context_tokens: prompt tokens computed in each step, shape (n,), in the order of the log.
        num_generation_requests: sequences that decode in it, shape (n,).
        elapsed_s: how long it took, shape (n,).
        engine: whose step it is, shape (n,); empty for one engine.
    """
    order = np.argsort(np.asarray(engine), kind="stable") if np.size(engine) else slice(None)
    context, decodes, elapsed = (
        np.asarray(column, dtype=np.float64)[order]
        for column in (num_context_tokens, num_generation_requests, elapsed_s)
    )
    num_steps = int((decodes > 0).sum())
    if num_steps < LEAST_SAMPLES:
        told = text.too_few(num_steps, LEAST_SAMPLES)
        return IterationModes(modality=Modality(verdict="cannot-tell", **told._asdict()), num_steps=num_steps)
    cost_s = _s_per_context_token(context, decodes, elapsed)
    lag = _lag(context, elapsed)
    elapsed = np.roll(elapsed, -lag)
    kinds = [(decodes > 0) & (context == 0), (decodes > 0) & (context > 0)]
    modes = [_mode(elapsed[kind], decodes[kind], decodes.sum()) for kind in kinds]
    medians = [_quantile(elapsed[kind], decodes[kind], 0.5) for kind in kinds]
    return IterationModes(
        modality=_judge(modes, medians, cost_s),
        num_steps=num_steps,
        with_prompts_share=float(decodes[kinds[1]].sum() / decodes.sum()),
        decode_only_s=medians[0],
        with_prompts_s=medians[1],
        s_per_context_token=cost_s,
        lag=lag,
    )


def _judge(modes: list[Mode | None], medians: list[float | None], cost_s: float | None) -> Modality:
    """Two modes where enough tokens come from steps of either kind and their medians are far apart."""
    without, with_prompts = modes
    if without is None or with_prompts is None or min(without.share, with_prompts.share) < LEAST_SHARE:
        share = with_prompts.share if with_prompts else 0.0
        main = without if with_prompts is None or (without and without.share > share) else with_prompts
        told = text.one_kind_of_step(share, str(main))
        return Modality(verdict="one-mode", modes=(main,) if main else (), blind_ratio=1.0, **told._asdict())
    fast_s, slow_s = (float(median or 0.0) for median in medians)
    shown = (format_seconds(fast_s), format_seconds(slow_s), with_prompts.share)
    if slow_s < LEAST_RATIO * fast_s:
        told = text.prompts_do_not_stall(*shown)
        return Modality(verdict="one-mode", modes=(without, with_prompts), blind_ratio=LEAST_RATIO, **told._asdict())
    told = text.prompts_stall(*shown, None if cost_s is None else format_seconds(1000 * cost_s))
    return Modality(verdict="two-modes", modes=(without, with_prompts), two_mode_share=1.0, **told._asdict())


def _mode(elapsed: FloatArray, weights: FloatArray, total: float) -> Mode | None:
    """From the 5th to the 95th percentile; None without steps."""
    low, high = (_quantile(elapsed, weights, level) for level in (0.05, 0.95))
    return None if low is None or high is None else Mode(lower_s=low, upper_s=high, share=weights.sum() / total)


def _quantile(elapsed: FloatArray, weights: FloatArray, level: float) -> float | None:
    if not len(elapsed):
        return None
    return float(np.quantile(elapsed, level, weights=weights, method="inverted_cdf"))


def _lag(context: FloatArray, elapsed: FloatArray) -> int:
    """The lag at which times follow prompt tokens most closely."""
    inner = slice(1, -1)
    if np.ptp(context[inner]) == 0 or np.ptp(elapsed) == 0:
        return 0
    return max(LAGS, key=lambda lag: float(np.corrcoef(context[inner], np.roll(elapsed, -lag)[inner])[0, 1]))


def _s_per_context_token(context: FloatArray, decodes: FloatArray, elapsed: FloatArray) -> float | None:
    """The part of a step's time that grows with its prompt tokens, from sums over blocks of steps."""
    num_blocks = len(elapsed) // BLOCK_STEPS
    if num_blocks < LEAST_BLOCKS:
        return None
    kept = num_blocks * BLOCK_STEPS
    columns = (np.ones(kept), decodes[:kept], context[:kept], elapsed[:kept])
    steps, sequences, tokens, seconds = (column.reshape(-1, BLOCK_STEPS).sum(axis=1) for column in columns)
    if np.ptp(tokens) == 0:
        return None
    design: NDArray[np.float64] = np.column_stack([steps, sequences, tokens])
    scale = design.max(axis=0)
    return float(nnls(design / scale, seconds)[0][2] / scale[2]) or None
