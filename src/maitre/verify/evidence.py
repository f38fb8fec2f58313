"""All that is known when a window is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from maitre.metric_series import MetricSeries, total_increase
from maitre.verify.deployment import Deployment
from maitre.verify.engine_gauges import EngineGauges, engine_gauges
from maitre.verify.modes.modality import Modality, judge_modes
from maitre.verify.window_figures import WindowFigures, figures_over_time, window_figures

NUM_PARTS = 24
"""Sub-windows at most: enough to tell day from night, each long enough for a histogram."""
PART = 4
"""Samples of the gauges in a sub-window at least; a minute at the usual scrape interval of 15 s."""
REGIME_S = 60.0
"""Sub-windows that are searched for modes are at least so long: shorter ones hold too few steps to show two."""


@dataclass(frozen=True, slots=True, eq=False)
class LogFailure:
    """A server that failed while it served, as its log shows it."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """One window: its figures, whole and in parts, its engines, and the setting they ran at."""

    series: tuple[MetricSeries, ...]
    deployment: Deployment
    engines: tuple[EngineGauges, ...]
    whole: WindowFigures
    parts: tuple[WindowFigures, ...]
    modality: Modality | None
    """Of logged steps where there are any, else of the histogram; None where neither is there."""
    failures: tuple[LogFailure, ...] = ()
    is_contradictory: bool = False
    """Whether counters run backwards and forwards: several processes answer behind one address."""

    @property
    def num_samples(self) -> int:
        """Of the engine that was seen most often."""
        return max((len(engine.time_s) for engine in self.engines), default=0)

    @property
    def preemptions_per_min(self) -> float | None:
        """None where the counter is not exposed, or was seen once."""
        if self.whole.preemptions is None or self.whole.duration_s is None:
            return None
        return 60 * self.whole.preemptions / self.whole.duration_s

    @property
    def num_engines(self) -> int:
        """Engines whose gauges are there, at least one."""
        return max(1, len(self.engines))

    @property
    def pool_tokens(self) -> float | None:
        """KV tokens of one engine."""
        tokens = self.deployment.kv_tokens
        return None if tokens is None else tokens / self.num_engines

    def last(self, name: str) -> float | None:
        """The last values of a series, summed over its labels; None where it is not exposed."""
        values = [v[-1] for one in self.series if one.name == name and len(v := one.values[np.isfinite(one.values)])]
        return float(sum(values)) if values else None

    def gain(self, name: str, **labels: str) -> float | None:
        """What a counter went up by, of the series with these labels."""
        return total_increase(self._rows(name, labels))

    def mean(self, name: str, **labels: str) -> float | None:
        """A gauge's mean, summed over the series with these labels."""
        rows = [one.values[np.isfinite(one.values)] for one in self._rows(name, labels)]
        means = [float(values.mean()) for values in rows if len(values)]
        return sum(means) if means else None

    def _rows(self, name: str, labels: Mapping[str, str]) -> list[MetricSeries]:
        """The series of a name that have these labels."""
        named = (one for one in self.series if one.name == name)
        return [one for one in named if all(one.labels.get(key) == value for key, value in labels.items())]


def gather(
    series: Sequence[MetricSeries],
    deployment: Deployment,
    *,
    failures: Sequence[LogFailure] = (),
    is_contradictory: bool = False,
    step_modes: Modality | None = None,
    seed: int = 0,
) -> Evidence:
    """Prepare what is judged.

    Args:
        series: those of the window, under vLLM's own names.
        deployment: what is known of the setting.
        failures: of the server while it served.
        is_contradictory: whether several processes answer behind one address.
        step_modes: of logged steps, which show the cause itself; counts before the histogram.
        seed: of the test for more than one mode.
    """
    times = np.concatenate([one.time_s for one in series] or [np.array([])])
    times = times[np.isfinite(times)]
    whole = window_figures(series)
    parts: tuple[WindowFigures, ...] = ()
    engines = engine_gauges(series)
    if len(times) and times.max() > times.min():
        length_s = max(PART * _interval_s(engines), float(times.max() - times.min()) / NUM_PARTS)
        parts = figures_over_time(series, float(times.min()), float(times.max()), length_s)
    return Evidence(
        series=tuple(series), deployment=deployment, engines=engines, whole=whole, parts=parts,
        modality=step_modes or _modality(series, whole, parts, seed), failures=tuple(failures),
        is_contradictory=is_contradictory,
    )  # fmt: skip


def _interval_s(engines: Sequence[EngineGauges]) -> float:
    """Time between two samples, of the engine that is seen most often."""
    gaps = [np.median(np.diff(engine.time_s)) for engine in engines if len(engine.time_s) > 1]
    return float(np.nanmin(gaps)) if gaps and np.isfinite(gaps).any() else 0.0


def _modality(
    series: Sequence[MetricSeries], whole: WindowFigures, parts: Sequence[WindowFigures], seed: int
) -> Modality | None:
    """Of the inter-token latency, regime by regime; None where it is not exposed."""
    if whole.itl is None:
        return None
    if parts and parts[0].end_s - parts[0].start_s < REGIME_S:
        parts = figures_over_time(series, parts[0].start_s, parts[-1].end_s, REGIME_S)
    shaped = [(part.itl, part.num_steps) for part in parts if part.itl is not None] or [(whole.itl, whole.num_steps)]
    return judge_modes([itl for itl, _ in shaped], [steps for _, steps in shaped], seed)
