"""What the matrix of a study shows, by its objective, and in which words."""

from __future__ import annotations

from maitre.records import BoundBy, Objective, Study, Trial
from maitre.units import format_seconds

BOUND_LETTERS: dict[BoundBy, str] = {"seqs": "s", "token-budget": "t", "kv-blocks": "k", "requests": "r"}
_LIMIT_LETTERS = (
    "what ends the rate: t time to first token, i inter-token, p per output token, e end-to-end, c capacity"
)
_BOUND_LETTERS = "what binds most of the time: s slots, t token budget, k KV blocks, r too few requests"


def heading(objective: Objective) -> str:
    """What a cell of the matrix holds."""
    match objective.kind:
        case "rate":
            return f"highest rate in requests/s that holds {' and '.join(objective.targets)}"
        case "latency":
            return f"{objective.latency} in seconds"
        case "throughput":
            return "useful tokens/s"


def figure(objective: Objective, trial: Trial) -> str:
    """A cell's figure, with a letter for what binds."""
    match objective.kind:
        case "rate":
            letter = trial.highest_rate.bound_by[0] if trial.highest_rate else ""
            return f"{objective.value(trial):.3g}{letter}" if objective.value(trial) else f"0{letter}"
        case "latency":
            return f"{objective.value(trial):.3g}{_letter(trial)}"
        case "throughput":
            return f"{trial.total_tokens_per_s:,.0f}{_letter(trial)}"


def letters(objective: Objective) -> str:
    """What the letters mean."""
    return _LIMIT_LETTERS if objective.kind == "rate" else _BOUND_LETTERS


def best_name(objective: Objective) -> str:
    """What the best cell of the matrix is called."""
    return {"rate": "highest rate", "latency": "least latency", "throughput": "fastest"}[objective.kind]


def load_words(study: Study) -> str:
    """How requests come."""
    own_rps = study.objective.own_rate_rps
    if study.objective.kind == "rate":
        if own_rps is None:
            return "requests come as a Poisson process at each rate; all figures are those at a cell's highest rate"
        own = f"{own_rps:.3g} requests/s"
        return f"the workload's own times, {own}, made faster or slower; all figures are those at a cell's highest rate"
    if study.open_loop:
        return "requests come at the workload's own times" + (f", {own_rps:.3g} a second" if own_rps else "")
    return "all requests are there at once, which measures capacity; time to first token is mostly time in the queue"


def gain_words(study: Study) -> str:
    """The gain of a change, and how sure the answer is."""
    answer = study.recommendation
    sure = answer.probability_within_epsilon
    probability = "" if sure is None else f"; within the margin of the best with probability {sure:.0%}"
    if answer.gain is None or answer.gain_low is None or answer.gain_high is None:
        return f"against {answer.baseline}: no gain to count, since it holds the targets at no rate{probability}"
    change, *bounds = (study.objective.change(gain) for gain in (answer.gain, answer.gain_low, answer.gain_high))
    low, high = sorted(bounds)
    what = {"rate": "highest rate", "latency": study.objective.latency, "throughput": "throughput"}
    interval = f"{100 * change:+.1f} % ({100 * low:+.1f} to {100 * high:+.1f} %)"
    return f"against {answer.baseline}: {what[study.objective.kind]} {interval}{probability}"


def highest_rate(trial: Trial) -> str:
    """For the table of figures; empty if the objective is another one."""
    found = trial.highest_rate
    return "" if found is None else f"{found.rate_rps:.3g}"


def ends_rate(trial: Trial) -> str:
    """The same for what ends the rate."""
    return "" if trial.highest_rate is None else trial.highest_rate.bound_by


def confirmed_rate(trial: Trial) -> str:
    """The same for the rate that a real server has held."""
    found = trial.highest_rate
    return "" if found is None or found.confirmed_rps is None else f"{found.confirmed_rps:.3g}"


def tightest(trial: Trial) -> str:
    """The percentiles that targets speak of; empty without targets."""
    held = trial.attainment.by_target if trial.attainment else ()
    return ", ".join("none" if one.value_s is None else format_seconds(one.value_s) for one in held)


def _letter(trial: Trial) -> str:
    return BOUND_LETTERS[trial.bound_by] if trial.bound_by else ""
