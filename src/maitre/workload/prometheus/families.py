"""vLLM's metrics at a Prometheus: what they are called there, and what they counted within a window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from maitre.metric_series import FloatArray, Histogram, MetricSeries, bucket_bound
from maitre.prometheus.client import PrometheusClient
from maitre.vllm.metric_names import canonical_name
from maitre.workload.prometheus.question import MODEL_LABEL, Question, selector

_ANY_VLLM = '__name__=~"(?i).*vllm.*"'
_MAX_POINTS = 5000
"""Of a range query; Prometheus refuses more than 11,000."""
_STEP_S = 15
"""The least distance of two looks at a gauge: the usual scrape interval."""
_MINUTE_S = 60
_WIDE_S = 300
"""Over which a rate is taken where one minute does not hold two scrapes."""


class Rates(NamedTuple):
    """How fast a counter went up, minute by minute; of a long window every nth minute."""

    per_s: FloatArray
    """Shape (m,), m ≥ 1; the minutes that have samples."""
    width_s: int
    """What each rate was taken over: a minute, or five where one does not hold two scrapes."""
    covered_s: float
    """How much of the window they cover."""


@dataclass(frozen=True, slots=True)
class Families:
    """The families that one server knows, over one window; every method asks it."""

    client: PrometheusClient
    question: Question
    names: Mapping[str, str]
    """From vLLM's own name of a sample to the server's."""

    def of_model(self, model: str) -> Families:
        """The same of one model alone."""
        return Families(self.client, self.question.of_model(model), self.names)

    def requests_by_model(self, family: str) -> dict[str, float]:
        """How many observations of a histogram each model made."""
        if (name := self.names.get(f"{family}_count")) is not None:
            counted = f"increase({self._over_window(name)})"
        elif (native := self.names.get(family)) is not None:
            counted = f"histogram_count(increase({self._over_window(native)}))"
        else:
            return {}
        return _by_label(self._ask(f"sum by ({MODEL_LABEL}) ({counted})"), MODEL_LABEL)

    def histogram(self, family: str) -> Histogram | None:
        """What a family counted, over all engines; None where it is not there. Native histograms count too."""
        buckets, native = self.names.get(f"{family}_bucket"), self.names.get(family)
        if buckets is None:
            return None if native is None else _assemble(self._ask(f"sum(increase({self._over_window(native)}))"), [])
        counted = f"increase({self._over_window(buckets)})"
        total = self.names.get(f"{family}_sum")
        plus_sum = "" if total is None else f" or sum(increase({self._over_window(total)}))"
        return _assemble(self._ask(f"sum by (le) ({counted}){plus_sum}"), self._ask(f"count by (le) ({counted})"))

    def gain(self, name: str) -> float | None:
        """How far a counter went up, over all engines."""
        return None if name not in self.names else sum(self.gain_by(name, "").values(), 0.0)

    def gain_by(self, name: str, label: str) -> dict[str, float]:
        """How far a counter went up, by the values of a label."""
        if name not in self.names:
            return {}
        return _by_label(self._ask(f"sum by ({label}) (increase({self._over_window(self.names[name])}))"), label)

    def rates(self, name: str) -> Rates | None:
        """A counter's rate over every minute of the window, over all engines; None where there is nothing."""
        if name not in self.names:
            return None
        step_s = self._step_s(_MINUTE_S)
        for width_s in (_MINUTE_S, _WIDE_S):
            rates = f"sum(rate({selector(self.names[name], self.question.matchers)}[{width_s}s]))"
            found = self._over_time(rates, step_s, start_s=self.question.start_s + width_s)
            if found is not None and found.values.size:
                most = (self.question.window_s - width_s) // step_s + 1
                return Rates(found.values, width_s, self.question.window_s * min(1.0, found.values.size / most))
        return None

    def gauge(self, name: str) -> MetricSeries | None:
        """A gauge over time, over all engines; what is negative or no number does not count."""
        if name not in self.names:
            return None
        seen = f"sum({selector(self.names[name], self.question.matchers)} >= 0)"
        return self._over_time(seen, self._step_s(_STEP_S), start_s=self.question.start_s)

    def _over_window(self, name: str) -> str:
        return f"{selector(name, self.question.matchers)}[{self.question.window_s}s]"

    def _ask(self, expr: str) -> list[MetricSeries]:
        return self.client.query(expr, self.question.end_s)

    def _over_time(self, expr: str, step_s: int, start_s: float) -> MetricSeries | None:
        end_s = self.question.end_s
        return next(iter(self.client.query_range(expr, start_s, end_s, step_s)), None) if start_s <= end_s else None

    def _step_s(self, least_s: int) -> int:
        return least_s * max(1, ceil(self.question.window_s / least_s / _MAX_POINTS))


def find_families(client: PrometheusClient, question: Question) -> Families:
    """Look up what vLLM's metrics are called.

    Raises:
        UsageError, InputError, SystemFailure: as `PrometheusClient`.
    """
    others = selector("", question.matchers).removeprefix('{__name__=""').removesuffix("}")
    names = client.label_values("__name__", [f"{{{_ANY_VLLM}{others}}}"], question.start_s, question.end_s)
    return Families(client, question, own_names(names))


def own_names(names: Iterable[str]) -> dict[str, str]:
    """From vLLM's own names to these. Of two spellings the one nearest to vLLM's own counts, lest all count twice."""
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (":" not in name, len(name), name)):
        own = canonical_name(name)
        if own is not None:
            found.setdefault(own, name)
    return found


def _by_label(series: Sequence[MetricSeries], label: str) -> dict[str, float]:
    return {one.labels.get(label, ""): float(one.values[-1]) for one in series if np.isfinite(one.values[-1])}


def _assemble(counted: Sequence[MetricSeries], num_series: Sequence[MetricSeries]) -> Histogram | None:
    """A histogram from increases by bound; of bounds that only some engines have none counts.

    Args:
        counted: with `le` the observations up to a bound; without it the sum.
        num_series: how many series each bound has; empty where all have the same.
    """
    up_to: dict[float, float] = {}
    for one in counted:
        if (bound := bucket_bound(one.labels)) is not None:  # two spellings of one bound, 1 and 1.0, are two series
            up_to[bound] = up_to.get(bound, 0.0) + float(one.values[-1])
    if not up_to.get(np.inf, 0.0) > 0:
        return None
    members: dict[float, float] = {}
    for one in num_series:
        if (bound := bucket_bound(one.labels)) is not None:
            members[bound] = members.get(bound, 0.0) + float(one.values[-1])
    upper = np.array(sorted(bound for bound in up_to if members.get(bound) == members.get(np.inf)))
    cumulative = np.maximum.accumulate(np.array([up_to[bound] for bound in upper]))
    sums = [float(one.values[-1]) for one in counted if "le" not in one.labels and not one.name.endswith("_count")]
    return Histogram(upper, np.diff(cumulative, prepend=0.0), sums[0] if sums else np.nan)
