"""GuideLLM's sweeps: does the throughput stage, which every other stage is derived from, measure capacity?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from maitre.bench_results.doubt import Doubt
from maitre.bench_results.points import group_points
from maitre.bench_results.records import Run

_DISAGREE = 1.2


def check_stages(rows: Sequence[Run]) -> Iterator[Doubt]:
    """Throughput stages that differ between sweeps of one server, or lie below another stage of their sweep."""
    remedy = (
        "GuideLLM limits the stage by the number of requests of the synchronous one (--max-requests), or by "
        "--max-seconds; run the throughput stage alone, with several times as many requests as fit in flight"
    )
    stages = [row for row, run in enumerate(rows) if run.stage == "throughput" and run.requests_per_s]
    for point in group_points(rows, stages):
        rates = [rows[row].requests_per_s or 0.0 for row in point]
        if max(rates) > _DISAGREE * min(rates):
            yield Doubt(
                "stages-disagree",
                f"the throughput stages of two sweeps differ {max(rates) / min(rates):.2f}-fold: {min(rates):g} and "
                f"{max(rates):g} requests/s of one server, so the lower one is no capacity",
                remedy,
                fatal=True,
            )
    others = [run.requests_per_s or 0.0 for run in rows if run.stage not in {None, "throughput"}]
    highest = max((rows[row].requests_per_s or 0.0 for row in stages), default=None)
    if highest is not None and others and max(others) > _DISAGREE * highest:
        yield Doubt(
            "stage-below-others",
            f"the throughput stage serves {highest:g} requests/s, another stage {max(others):g}: it is no capacity",
            remedy,
            fatal=True,
        )
