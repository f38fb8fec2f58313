"""What the answers on inter-token latency say to people, and what they advise."""

from __future__ import annotations

from typing import NamedTuple

FINER_BUCKETS = (
    "start vLLM 0.32 or later with finer buckets: --custom-histogram-buckets "
    """'{"inter_token_latency": [0.002, 0.003, 0.004, 0.006, 0.008, 0.011, 0.015, 0.021, 0.03, 0.042, 0.058, 0.081, """
    "0.11, 0.16, 0.22, 0.31, 0.43, 0.61, 0.85, 1.2, 2.5, 10]}'"
)
"""Ratios of about 1.4 from 2 ms to 1.2 s, 23 series an engine. 0.32 is the first version with the flag."""
ITERATION_LOG = (
    "run a few minutes with --enable-logging-iteration-details (0.14 and later), which tells steps with prompts in "
    "them from steps without"
)
STALLS = (
    "usually the slower ones are steps that also compute other requests' prompts: every running sequence waits for them"
)
SHORTER_STEPS = (
    "lower --max-num-batched-tokens, so that a step holds fewer prompt tokens; where time to first token has room, "
    "--prefill-schedule-interval makes such steps rarer (0.33 and later; 0.24 and later with data parallelism). "
    "Servers of different speed behind one name look the same: judge each alone first"
)
WIDE_RATIO = 3.0
"""Above it a stall that users notice could hide in the buckets."""


class Wording(NamedTuple):
    """A reason, and what would help; empty where nothing needs to be done."""

    reason: str
    remedy: str


def two_modes(fast: str, fast_share: float, slow: str, slow_share: float) -> Wording:
    """Two paces that most of the tokens' sub-windows show."""
    return Wording(
        f"tokens come at two paces: {fast_share:.0%} around {fast} and {slow_share:.0%} around {slow}; {STALLS}",
        SHORTER_STEPS,
    )


def one_mode(main: str, blind_ratio: float) -> Wording:
    """No second pace, as far as the buckets can tell."""
    return Wording(
        f"no second pace beside the one around {main}; two that are less than ×{blind_ratio:.2g} apart would not show "
        "in these buckets",
        f"to see closer ones, {FINER_BUCKETS}; or {ITERATION_LOG}" if blind_ratio > WIDE_RATIO else "",
    )


def two_regimes(fast: str, slow: str) -> Wording:
    """Two paces over the whole time, but one at a time."""
    return Wording(
        f"tokens come around {fast} at some times and around {slow} at others, but hardly ever at both at once: the "
        "load changed, and no setting stalls them",
        "judge the busy and the quiet time apart",
    )


def nothing_counted() -> Wording:
    """No histogram, or an empty one."""
    return Wording(
        "no inter-token latency was counted in any bucket",
        "send traffic with more than one output token, or take a window that has some",
    )


def too_few(size: float, least: int) -> Wording:
    """Too few independent steps."""
    return Wording(
        f"the tokens come from about {size:,.0f} independent steps; {least} are the least to tell two paces from noise",
        "take a longer window",
    )


def fastest_bucket(share: float, bound: str) -> Wording:
    """The main mode is at the lower end of what the buckets resolve."""
    return Wording(
        f"{share:.0%} of the tokens took less than {bound}, the first bound of the buckets: paces below it look alike",
        f"{FINER_BUCKETS}; or {ITERATION_LOG}",
    )


def slowest_bucket(share: float, bound: str) -> Wording:
    """Too much lies beyond the last bound."""
    return Wording(
        f"{share:.0%} of the tokens took more than {bound}, the last bound of the buckets: paces above it look alike",
        f"{FINER_BUCKETS}; or {ITERATION_LOG}",
    )


def one_kind_of_step(with_prompts_share: float, main: str) -> Wording:
    """Logged steps, nearly all with prompts or nearly all without."""
    return Wording(
        f"{with_prompts_share:.1%} of the tokens come from steps that also compute prompts: one pace, {main}", ""
    )


def prompts_do_not_stall(fast: str, slow: str, share: float) -> Wording:
    """Logged steps that hardly differ."""
    return Wording(
        f"steps that also compute prompts take {slow} and give {share:.0%} of the tokens, others take {fast}: too "
        "close to be felt as two paces",
        "",
    )


def prompts_stall(fast: str, slow: str, share: float, per_thousand: str | None) -> Wording:
    """Logged steps that differ: the cause is seen, not concluded."""
    cost = f"; 1,000 prompt tokens in a step add about {per_thousand} to it" if per_thousand else ""
    return Wording(
        f"steps that also compute prompts take {slow} and give {share:.0%} of the tokens, others take {fast}{cost}",
        SHORTER_STEPS,
    )
