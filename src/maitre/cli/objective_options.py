"""How simulate and tune are told what to look for: throughput, a rate within latency targets, or a latency."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from maitre.cli.workload_options import WorkloadOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitre.records import Cell, Study, Trial, Workload
    from maitre.setup import Setup
    from maitre.slo import LatencyTarget
    from maitre.tune import Goal

RATE_REQUESTS = 1000
"""Requests of each run of a search for the highest rate, unless --num-requests says otherwise."""

ENGINES = {
    "throughput": ("simulated", "recorded", "live", "restart", "vllm-bench", "attach"),
    "rate": ("simulated", "live", "restart"),
    "latency": ("simulated",),
}
"""Who can look for what."""

_WORDS = {"throughput": "throughput", "rate": "the highest rate within targets", "latency": "latency"}


@Parameter(name="*")
@dataclass(frozen=True)
class ObjectiveOptions:
    """What makes one cell better than another."""

    _: KW_ONLY
    slo: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """A latency target such as ttft_p95=500ms or itl_p99=50ms; also tpot and e2e, p50 to p99 and max. Give it once for
    each target. Without --objective, cells are compared by the highest rate of requests that meets all of them."""
    objective: Literal["throughput", "rate", "latency"] | None = None
    """throughput: useful tokens/s with all requests at once. rate: the highest rate within the --slo targets. latency:
    at the workload's own times, the latency that the first --slo names, or p95 of end-to-end."""

    @property
    def kind(self) -> Literal["throughput", "rate", "latency"]:
        """--objective; the rate if there are only targets, else the throughput."""
        return self.objective or ("rate" if self.slo else "throughput")

    def targets(self) -> tuple[LatencyTarget, ...]:
        """--slo.

        Raises:
            UsageError: one is no target; there is none for a rate, or one for a throughput.
        """
        from maitre.errors import UsageError
        from maitre.slo import parse_latency_targets

        if self.kind == "rate" and not self.slo:
            raise UsageError("the highest rate within which targets?", "add --slo ttft_p95=500ms, for instance")
        if self.kind == "throughput" and self.slo:
            what = "latency targets play no part in the throughput of requests that are all there at once"
            raise UsageError(what, "leave --slo out, or --objective throughput")
        return parse_latency_targets(self.slo)

    def check_engine(self, kind: str) -> None:
        """Whether an engine can look for it.

        Raises:
            UsageError: it cannot.
        """
        from maitre.errors import UsageError

        if kind not in ENGINES[self.kind]:
            what = f"the engine {kind} does not compare cells by {_WORDS[self.kind]}"
            raise UsageError(what, f"choose {' or '.join(ENGINES[self.kind])}")

    def check_varied(self, varied: Sequence[str]) -> None:
        """Whether other flags can be varied for it.

        Raises:
            UsageError: they cannot.
        """
        from maitre.errors import UsageError

        if varied and self.kind != "throughput":
            what = "other flags can be varied for throughput only"
            raise UsageError(what, "leave the lists, or --slo and --objective, out")

    def sized(self, workload: WorkloadOptions) -> WorkloadOptions:
        """As many requests as the objective can do with: each step of a search for a rate runs them all."""
        if self.kind != "rate" or workload.num_requests is not None:
            return workload
        return replace(workload, num_requests=RATE_REQUESTS)

    def tune(
        self, traffic: Workload, setup: Setup, cells: Sequence[Cell], goal: Goal, *,
        open_loop: bool, on_trial: Callable[[Trial], None],
    ) -> Study:  # fmt: skip
        """Look for it in the simulator.

        Raises:
            UsageError: the targets are wrong, or the workload has no arrival times where they are needed.
        """
        from maitre.objectives import tune_latency, tune_rate
        from maitre.tune import tune_simulated

        targets = self.targets()
        if self.kind == "rate":
            return tune_rate(traffic, setup, cells, targets, goal, on_trial=on_trial)
        if self.kind == "latency":
            return tune_latency(traffic, setup, cells, targets, goal, on_trial=on_trial)
        return tune_simulated(traffic, setup, cells, goal, open_loop=open_loop, on_trial=on_trial)


THROUGHPUT = ObjectiveOptions()
"""The default of a verb's parameter."""


def exit_code(study: Study) -> int:
    """1 if no cell can meet the targets: the verb ran, and the answer is no."""
    return int(any(finding.code == "targets-out-of-reach" for finding in study.findings))
