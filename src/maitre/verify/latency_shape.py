"""Is the inter-token latency of one mode, and steady?"""

from __future__ import annotations

import numpy as np

from maitre.verify.evidence import Evidence
from maitre.verify.verdict import Confirmation, Finding
from maitre.verify.words import milliseconds, percent

UNSTEADY = 1.5
"""Ratio of slow to fast sub-windows (p90 to p10 of their means) from which the latency is unsteady …"""
SAME_LOAD = 1.2
"""… when the running requests differ by less than this."""
LEAST_PARTS = 6


def two_modes(evidence: Evidence) -> Finding | None:
    """Tokens come at two paces."""
    modality = evidence.modality
    if modality is None or modality.verdict != "two-modes":
        return None
    return Finding(
        code="two-modes",
        verdict="other",
        message=f"the inter-token latency has two modes: {modality.reason}",
        value=modality.two_mode_share,
        remedy=modality.remedy,
        remedy_code="lower-token-budget",
        evidence=tuple(
            f"{percent(mode.share)} of the tokens around {milliseconds(mode.lower_s)} to {milliseconds(mode.upper_s)}"
            for mode in modality.modes
        ),
    )


def unsteady(evidence: Evidence) -> Finding | None:
    """A remark: the mean latency moves while the load does not."""
    rows = [(part.itl.mean, part.running) for part in evidence.parts if part.itl is not None]
    known = [(mean, running) for mean, running in rows if mean is not None and running]
    if len(known) < LEAST_PARTS:
        return None
    means, running = (np.array(column) for column in zip(*known, strict=True))
    ratio, load = _spread(means), _spread(running)
    if ratio < UNSTEADY or load > SAME_LOAD:
        return None
    return Finding(
        code="unsteady-latency",
        message=f"the mean inter-token latency moves by a factor of {ratio:.1f} between sub-windows, and the running "
        f"requests by {load:.1f} only",
        value=ratio,
        remedy="look for other work on the GPUs, power or thermal limits, and prompts of very different lengths",
    )


def confirm_latency(evidence: Evidence) -> Confirmation:
    """The third confirmation: stable and of one mode."""
    itl, modality = evidence.whole.itl, evidence.modality
    mean = None if itl is None else itl.mean
    shown = f"{milliseconds(mean)} on average, " if mean is not None else ""
    if modality is None:
        return Confirmation(
            name="inter-token-latency", answer="cannot-tell", value=mean,
            message="the inter-token latency is not exposed here",
        )  # fmt: skip
    if modality.verdict == "one-mode" and (moves := unsteady(evidence)) is not None:
        return Confirmation(name="inter-token-latency", answer="no", value=mean, message=shown + moves.message)
    answers = {"one-mode": "yes", "two-modes": "no", "cannot-tell": "cannot-tell"}
    return Confirmation(
        name="inter-token-latency", answer=answers[modality.verdict], value=mean, message=shown + modality.reason
    )


def _spread(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    low, high = np.quantile(values, [0.1, 0.9])
    return float(high / low) if low > 0 else np.inf
