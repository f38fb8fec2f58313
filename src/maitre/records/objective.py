"""What makes one cell better than another."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from maitre.records.record import Record
from maitre.records.trial import Trial

DEFAULT_LATENCY = "e2e_p95"


class Objective(Record):
    """What a study looked for."""

    kind: Literal["throughput", "rate", "latency"] = "throughput"
    """The most useful tokens/s; the highest rate of requests within the targets; or the least latency."""
    targets: tuple[str, ...] = ()
    """Latency targets, such as itl_p99=50ms. The latency objective is about the latency of the first."""
    own_rate_rps: float | None = Field(default=None, gt=0)
    """Mean rate of the workload's own arrivals, requests/s; None if it has no arrival times."""

    @property
    def latency(self) -> str:
        """The latency that the latency objective is about, such as e2e_p95."""
        return self.targets[0].partition("=")[0] if self.targets else DEFAULT_LATENCY

    def value(self, trial: Trial) -> float:
        """The figure of a cell that counts: useful tokens/s, requests/s (0 if no rate meets the targets) or seconds."""
        match self.kind:
            case "rate":
                return trial.highest_rate.rate_rps if trial.highest_rate else 0.0
            case "latency":
                return self._latency_s(trial)
            case "throughput":
                return trial.total_tokens_per_s

    def merit(self, trial: Trial) -> float:
        """The same so that more is better: the latency's reciprocal."""
        return 1 / self.value(trial) if self.kind == "latency" else self.value(trial)

    def change(self, gain: float) -> float:
        """Relative change of the figure itself, for a gain of merit: a gain of 0.25 is a latency that is 0.2 lower."""
        return 1 / (1 + gain) - 1 if self.kind == "latency" else gain

    def _latency_s(self, trial: Trial) -> float:
        if trial.attainment is None:
            assert trial.e2e_s is not None
            return trial.e2e_s.p95
        value_s = trial.attainment.by_target[0].value_s
        assert value_s is not None
        return value_s
