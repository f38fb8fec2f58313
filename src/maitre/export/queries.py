"""PromQL over the names that a deployment has.

A query is written with `@waiting` for the selector of a signal and `@by` for the labels that tell deployments apart, so
`$` stays what Grafana and Prometheus make of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import Template
from typing import NamedTuple

from maitre.errors import UsageError
from maitre.export.installed_metrics import InstalledMetrics


def _histogram(*families: str) -> tuple[str, ...]:
    """The samples of a histogram: its buckets, or the whole of it where Prometheus made a native one of them."""
    return (*(f"{family}_bucket" for family in families), *families)


SIGNALS: Mapping[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ('vllm:num_requests_waiting_by_reason{reason="capacity"}', "vllm:num_requests_waiting"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "preemptions": ("vllm:num_preemptions_total",),
    "itl": _histogram("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "tpot": _histogram("vllm:request_time_per_output_token_seconds"),
    "ttft": _histogram("vllm:time_to_first_token_seconds"),
    "ttft_count": ("vllm:time_to_first_token_seconds_count",),
    "e2e": _histogram("vllm:e2e_request_latency_seconds"),
    "queue": _histogram("vllm:request_queue_time_seconds"),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "finished": ("vllm:request_success_total",),
    "served": ('vllm:request_success_total{finished_reason!~"abort|error"}',),
    "rejections": ("vllm:admission_rejections_total",),
    "hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prompt_length": _histogram("vllm:request_prompt_tokens"),
    "output_length": _histogram("vllm:request_generation_tokens"),
}
"""What is asked for, and the samples that tell it, the best first. Requests that wait for `capacity` (0.20 and later)
wait for one of the two limits or for KV blocks; the others, which older versions count too, for an adapter or a
transfer. time_per_output_token_seconds was the time between tokens under another name."""

_MATCHER = re.compile(r'[A-Za-z_]\w*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"')
_LABEL = re.compile(r"[A-Za-z_]\w*")


class Promql(Template):
    """A query or a text with `@name` for what is filled in."""

    delimiter = "@"


class Queries(NamedTuple):
    """Whose metrics are asked for."""

    metrics: InstalledMetrics
    matchers: tuple[str, ...] = ()
    """What every selector has, such as `namespace="prod"`."""
    by: tuple[str, ...] = ("model_name",)
    """Labels that tell deployments apart; at least one."""

    @property
    def level(self) -> str:
        """The first part of a recording rule's name: the labels that are left."""
        return "_".join(self.by)

    def missing(self, template: str) -> list[str]:
        """The signals of a query that the deployment does not have, each as the samples that would tell it."""
        signals = [name for name in Promql(template).get_identifiers() if name in SIGNALS]
        lacking = [SIGNALS[signal] for signal in signals if self._select(signal) is None]
        return [" or ".join(name for name in names if f"{name}_bucket" not in names) for names in lacking]

    def fill(self, template: str) -> str:
        """The query; none of its signals may be missing.

        Args:
            template: with signals, `@by` and `@level`.
        """
        filled = {signal: self._select(signal) or "" for signal in SIGNALS}
        return Promql(template).substitute(filled, by=", ".join(self.by), level=self.level)

    def _select(self, signal: str) -> str | None:
        for sample in SIGNALS[signal]:
            name, _, own = sample.partition("{")
            if (written := self.metrics.find(name)) is not None:
                matchers = ",".join([*self.matchers, *([own.removesuffix("}")] if own else [])])
                return f"{written}{{{matchers}}}" if matchers else written
        return None


def checked_matchers(texts: Sequence[str]) -> tuple[str, ...]:
    """Label matchers of PromQL, one a text.

    Raises:
        UsageError: one is none.
    """
    for text in texts:
        if not _MATCHER.fullmatch(text.strip()):
            raise UsageError(f"'{text}' is no label matcher", """write it as in a query: 'namespace="prod"'""")
    return tuple(text.strip() for text in texts)


def checked_labels(text: str) -> tuple[str, ...]:
    """Names of labels, separated by commas.

    Raises:
        UsageError: there is none, or one is no label's name.
    """
    labels = tuple(label.strip() for label in text.split(","))
    for label in labels:
        if not _LABEL.fullmatch(label) or labels.count(label) > 1:
            raise UsageError(f"'{text}' is no list of labels", "write model_name,namespace")
    return labels


def quantile(signal: str, percent: int, window: str, by: str = "@by") -> str:
    """The template of a percentile of a histogram.

    Args:
        signal: a histogram's buckets.
        percent: 1 to 99.
        window: how far back, such as 10m.
        by: the labels to keep.
    """
    return f"histogram_quantile({percent / 100:g}, sum by ({by}, le) (rate(@{signal}[{window}])))"
