"""How export is told the deployment: the metrics that it has, and from where on a figure is an alarm."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from maitre.cli.numbers import Count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitre.export import InstalledMetrics, Queries, Thresholds
    from maitre.records import Study
    from maitre.slo import LatencyTarget

Amount = Annotated[float, Parameter(validator=Number(gt=0, lt=1e9))]
Level = Annotated[float, Parameter(validator=Number(gte=0, lt=1e9))]
Share = Annotated[float, Parameter(validator=Number(gt=0, lt=1))]


@Parameter(name="*")
@dataclass(frozen=True)
class DeploymentOptions:
    """Whose metrics, and how they are spelt there."""

    _: KW_ONLY
    metrics: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    """The names that there really are: the server's address, a saved scrape of /metrics, or what Prometheus lists
    or answers (docs/export.md); - for stdin."""
    vllm_version: str | None = None
    """Instead of --metrics: the names of this version; of the newest one known when neither is given."""
    prefix: str | None = None
    """What relabelling has made of the beginning vllm: of the names, such as vllm_ or ray_vllm_."""
    match: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """A label matcher that every selector gets, such as 'namespace="prod"'. Give it once for each."""
    api_key: str | None = None
    """For --metrics with an address; else VLLM_API_KEY or OPENAI_API_KEY."""

    def queries(self, by: str = "model_name") -> Queries:
        """The deployment.

        Args:
            by: labels that tell deployments apart, with commas.

        Raises:
            UsageError: an option is wrong, or two contradict each other.
            InputError: the scrape has no metrics of vLLM.
            SystemFailure: no answer, or the disk refuses.
        """
        from maitre.export import Queries, checked_labels, checked_matchers

        return Queries(self._installed(), checked_matchers(self.match), checked_labels(by))

    def _installed(self) -> InstalledMetrics:
        from maitre.cli.budget_sources import scraped_text, source_name
        from maitre.errors import UsageError
        from maitre.export import NEWEST, metrics_of_scrape, metrics_of_version

        if self.metrics is None:
            return metrics_of_version(self.vllm_version or NEWEST, self.prefix if self.prefix is not None else "vllm:")
        if self.vllm_version is not None:
            raise UsageError("--metrics and --vllm-version both say which names there are", "leave one of them out")
        prefixes = (self.prefix,) if self.prefix is not None else ()
        is_complete = "/api/v1/" not in self.metrics or "?" in self.metrics
        place = self.metrics if is_complete else f"{self.metrics}?"  # not the base address of a vLLM
        return metrics_of_scrape(scraped_text(place, self.api_key), source_name(self.metrics), prefixes)


@Parameter(name="*")
@dataclass(frozen=True)
class ThresholdOptions:
    """From where on a figure is an alarm. Those of one engine are held against the worst engine."""

    _: KW_ONLY
    slo: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """A latency target such as ttft_p95=500ms or itl_p99=50ms; also tpot and e2e, p50 to p99. Give it once for each."""
    itl_p99: str | None = None
    """The same as --slo itl_p99=…"""
    ttft_p95: str | None = None
    """The same as --slo ttft_p95=…"""
    max_waiting: Level = 1.0
    """Requests that wait on one engine, mean of ten minutes: 0 in steady state, a burst apart."""
    max_preemptions: Amount = 1.0
    """Preemptions a minute on one engine from which on there are too many."""
    max_itl_ratio: Annotated[float, Parameter(validator=Number(gt=1, lt=1e9))] = 8.0
    """p99 over p50 of the inter-token latency: above it, it is not stable."""
    max_kv_usage: Share = 0.95
    """Share of one engine's KV blocks in use."""
    min_kv_usage: Share = 0.5
    """Share of the KV blocks below which a server with demand has room."""
    min_running: Level = 4.0
    """Running requests, mean of an hour, from which on there is demand."""
    queue_p95: str = "1s"
    """p95 of the time in the queue; vLLM's histogram tells no less than 0.3 s."""
    max_lost: Share = 0.05
    """Share of the requests that began to answer and never ended."""
    max_num_seqs: Count | None = None
    """The limit in force, which texts and plots then name."""
    study: Path | None = None
    """Directory of a study: its max_num_seqs, and its latency targets or 1.5 times what its recommended cell shows."""

    def thresholds(self) -> Thresholds:
        """The limits, those given on the command line before the study's.

        Raises:
            UsageError: a target is none, or is given twice.
            InputError: there is no study, or it is broken.
        """
        from maitre.export import Thresholds

        study = self._study()
        return Thresholds(
            max_waiting=self.max_waiting, max_preemptions=self.max_preemptions, max_itl_ratio=self.max_itl_ratio,
            max_kv_usage=self.max_kv_usage, min_kv_usage=self.min_kv_usage, min_running=self.min_running,
            max_queue_p95_s=self._queue_p95_s(), max_lost=self.max_lost, targets=self._targets(study),
            max_num_seqs=self.max_num_seqs or (study.recommended.max_num_seqs if study else None),
        )  # fmt: skip

    def _queue_p95_s(self) -> float:
        from maitre.errors import UsageError
        from maitre.units import parse_duration_s

        if (limit_s := parse_duration_s(self.queue_p95)) == 0:
            raise UsageError(f"--queue-p95 '{self.queue_p95}': nothing takes no time", "name a limit above 0")
        return limit_s

    def _study(self) -> Study | None:
        if self.study is None:
            return None
        from maitre.study import StudyDirectory

        return StudyDirectory(self.study).load()

    def _targets(self, study: Study | None) -> tuple[LatencyTarget, ...]:
        from maitre.errors import UsageError
        from maitre.export import study_targets
        from maitre.slo import parse_latency_targets

        given = parse_latency_targets([*self.slo, *self._short()])
        if longest := next((target for target in given if target.percent == 100), None):
            raise UsageError(f"'{longest}': a histogram tells no maximum", "name p50 to p99")
        named = {(target.metric, target.percent) for target in given}
        expected = study_targets(study) if study else ()
        return (*given, *(target for target in expected if (target.metric, target.percent) not in named))

    def _short(self) -> Iterator[str]:
        for name in ("itl_p99", "ttft_p95"):
            if (limit := getattr(self, name)) is not None:
                yield f"{name}={limit}"


NEWEST_VLLM = DeploymentOptions()
CONFIRMATIONS = ThresholdOptions()
"""The defaults of a verb's parameters."""
