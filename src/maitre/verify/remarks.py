"""What is worth knowing beside the verdict."""

from __future__ import annotations

from maitre.verify.evidence import Evidence
from maitre.verify.latency_shape import unsteady
from maitre.verify.verdict import Finding
from maitre.verify.waiting import passing_bursts, uneven_engines
from maitre.verify.words import percent

ABORTED = 0.05
"""Share of requests that clients give up, from which it is worth a word."""
REJECTIONS = ("vllm:admission_rejections_total", "vllm:num_requests_rejected_total")


def remarks(evidence: Evidence) -> list[Finding]:
    """Findings that call for no verdict."""
    found = (passing_bursts(evidence), uneven_engines(evidence), unsteady(evidence), *(
        rule(evidence) for rule in (_rejected, _aborted, _two_regimes)
    ))  # fmt: skip
    return [finding for finding in found if finding is not None]


def _rejected(evidence: Evidence) -> Finding | None:
    rejected = next((gain for name in REJECTIONS if (gain := evidence.gain(name))), None)
    if not rejected:
        return None
    return Finding(
        code="rejected-requests",
        message=f"the front end refused {rejected:,.0f} requests: they are in no other figure",
        value=rejected,
        remedy="the bounds are --max-num-queued-reqs and --max-num-queued-tokens; a refused request is a lost one",
    )


def _aborted(evidence: Evidence) -> Finding | None:
    aborted = evidence.gain("vllm:request_success_total", finished_reason="abort")
    finished = evidence.whole.num_requests
    if not aborted or not finished or aborted / finished < ABORTED:
        return None
    return Finding(
        code="aborted-requests",
        message=f"{percent(aborted / finished)} of the requests were aborted by their clients",
        value=aborted / finished,
        remedy="look at the client's time-out: tokens of an aborted request are computed for nobody",
    )


def _two_regimes(evidence: Evidence) -> Finding | None:
    modality = evidence.modality
    if modality is None or not modality.two_regimes:
        return None
    return Finding(
        code="two-regimes",
        message="the inter-token latency differs between busy and quiet hours; within each it has one mode",
        remedy="judge a busy hour by itself: --last 1h --to TIME",
    )
