"""The answer of `maitre verify`: one verdict, three confirmations, and the findings that lead to them."""

from __future__ import annotations

from typing import Literal

from maitre.records import Record

VerdictName = Literal[
    "healthy", "raise-token-budget", "lower-max-num-seqs", "kv-bound", "seq-capped", "client-limited", "not-saturated",
    "defaults-suffice", "cannot-tell", "bug-in-vllm", "other",
]  # fmt: skip
RemedyCode = Literal[
    "raise-max-num-seqs", "lower-max-num-seqs", "raise-token-budget", "lower-token-budget", "fp8-kv-cache",
    "more-memory", "raise-gpu-memory-utilization", "lower-gpu-memory-utilization", "lower-max-model-len",
    "raise-max-loras", "keep-the-setting", "measure-more", "report-a-defect", "look-at-the-client",
]  # fmt: skip
STAYS: frozenset[VerdictName] = frozenset({"healthy", "client-limited", "not-saturated", "defaults-suffice"})
"""The setting may stay as it is."""


Answer = Literal["yes", "no", "cannot-tell"]


def answer_of(verdict: VerdictName) -> Answer:
    """Is the setting right?"""
    if verdict in STAYS:
        return "yes"
    return "cannot-tell" if verdict == "cannot-tell" else "no"


class Confirmation(Record):
    """One of the three things that have to hold after a change."""

    name: Literal["waiting", "preemptions", "inter-token-latency"]
    answer: Answer
    value: float | None
    """Mean requests waiting; preemptions a minute; mean inter-token latency in seconds."""
    message: str


class Finding(Record):
    """Something that the metrics say, and what to do about it."""

    code: str
    message: str
    value: float | None = None
    remedy: str = ""
    remedy_code: RemedyCode | None = None
    evidence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    """What speaks for another answer."""
    verdict: VerdictName | None = None
    """The verdict that it calls for; None for a remark."""


class Judgement(Record):
    """A verdict and how it came about."""

    verdict: VerdictName
    summary: str
    confirmations: tuple[Confirmation, ...]
    findings: tuple[Finding, ...]
    """The one that decided comes first."""

    @property
    def may_stay(self) -> bool:
        """Whether nothing needs to be changed."""
        return self.verdict in STAYS
