"""The five reference workloads: named starting points, to be replaced by one's own traffic."""

from __future__ import annotations

import math
from difflib import get_close_matches

from maitre.errors import UsageError
from maitre.records import Cell, Record, Workload
from maitre.workload.synthetic import LengthSpec, draw_workload


class ReferenceProfile(Record):
    """A named kind of traffic, and the setting that a rule of thumb gives it."""

    name: str
    summary: str
    lengths: LengthSpec
    basis: str
    """Where the spread of the lengths comes from."""
    cell: Cell
    """The rule of thumb's setting: a starting point for any GPU and model, not a measurement."""

    def __str__(self) -> str:
        return f"{self.name} ({self.lengths.prompt_median:g}/{self.lengths.output_median:g})"


def _profile(
    name: str, summary: str, lengths: tuple[float, float, float, float], cell: tuple[int, int], basis: str
) -> ReferenceProfile:
    """Lengths: prompt median, σ, output median, σ. Cell: max_num_seqs, max_num_batched_tokens."""
    spec = dict(zip(("prompt_median", "prompt_sigma", "output_median", "output_sigma"), lengths, strict=True))
    dials = Cell(max_num_seqs=cell[0], max_num_batched_tokens=cell[1])
    return ReferenceProfile(name=name, summary=summary, lengths=LengthSpec(**spec), basis=basis, cell=dials)


# Medians and settings are the rule of thumb's. Spreads: σ = ln(p90 / p50) / 1.2816 of a public trace of the same kind,
# to one digit (the upper half only: it makes the load, and the traces' lower halves are not log-normal). Where no
# public trace is of that kind the spread is assumed, and `basis` says so.
REFERENCES: dict[str, ReferenceProfile] = {
    profile.name: profile
    for profile in (
        _profile(
            "chat",
            "short questions, longer answers",
            (150, 0.8, 300, 0.9),
            (256, 16384),
            "Azure LLM inference trace 2023, conversation: ln(2735/1020)/1.28 and ln(424/129)/1.28",
        ),
        _profile(
            "rag",
            "retrieved passages in, a short answer out",
            (1500, 0.5, 200, 0.9),
            (64, 32768),
            "assumed: passages of even size vary less than free prompts; answers vary as in chat",
        ),
        _profile(
            "coding",
            "code as context, code as answer",
            (800, 1.0, 500, 1.1),
            (128, 32768),
            "Azure LLM inference trace 2023, code: ln(5194/1469)/1.28 and ln(55/13)/1.28",
        ),
        _profile(
            "summarisation",
            "a long document in, a summary out",
            (2500, 0.2, 400, 0.6),
            (32, 65536),
            "arXiv summarisation trace published with vidur: ln(3702/2730)/1.28 and ln(372/167)/1.28",
        ),
        _profile(
            "batch",
            "long documents worked through offline",
            (4000, 0.5, 800, 0.5),
            (16, 65536),
            "assumed: the documents of one job, and what is written about them, resemble each other",
        ),
    )
}


def reference_workload(name: str, num_requests: int = 1000, seed: int = 0) -> Workload:
    """Draw a reference workload (see `REFERENCES`), without arrival times.

    Raises:
        UsageError: there is no such reference workload.
    """
    profile = REFERENCES.get(name.strip().lower())
    if profile is None:
        close = get_close_matches(name, REFERENCES, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"no reference workload '{name}'", f"{hint}there are {', '.join(REFERENCES)}")
    return draw_workload(profile.lengths, num_requests, seed, name=profile.name, source="reference workload")


def nearest_reference(prompt_p50: float, output_p50: float) -> ReferenceProfile:
    """The reference whose medians are nearest: least |log ratio| of prompts plus that of outputs."""

    def distance(profile: ReferenceProfile) -> float:
        lengths = profile.lengths
        pairs = ((prompt_p50, lengths.prompt_median), (output_p50, lengths.output_median))
        return sum(abs(math.log(mine / its)) for mine, its in pairs)

    return min(REFERENCES.values(), key=distance)
