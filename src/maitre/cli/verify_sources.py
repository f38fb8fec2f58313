"""Read what `maitre verify` is to look at: every source becomes series, and what else it says."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from maitre.verify.deployment import Deployment

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from maitre.cli.prometheus_options import PrometheusOptions
    from maitre.cli.verify_options import SourceOptions
    from maitre.metric_series import MetricSeries
    from maitre.prometheus.access import Access
    from maitre.verify.evidence import LogFailure
    from maitre.verify.modes.modality import Modality
    from maitre.vllm.iteration_lines import IterationTable

HOUR = "1h"
"""The window of a Prometheus when none is named."""
NOTHING = Deployment()


@dataclass(frozen=True, slots=True, eq=False)
class ReadSources:
    """All that the sources say of one window."""

    source: str
    series: tuple[MetricSeries, ...] = ()
    deployment: Deployment = NOTHING
    failures: tuple[LogFailure, ...] = ()
    step_modes: Modality | None = None
    """Of logged steps."""
    notes: tuple[str, ...] = ()

    @property
    def is_contradictory(self) -> bool:
        """Whether counters run backwards and forwards: several processes answer behind one address."""
        from maitre.verify.sources.counter_order import contradictory_counters

        return bool(contradictory_counters(self.series))

    def without(self, names: Collection[str]) -> ReadSources:
        """Leave series out that another source has as well."""
        return replace(self, series=tuple(one for one in self.series if one.name not in names))

    def joined(self, other: ReadSources) -> ReadSources:
        """Both together; of what both know of the setting, the first counts."""
        return ReadSources(
            source=f"{self.source}, {other.source}",
            series=(*self.series, *other.series),
            deployment=self.deployment.or_else(other.deployment),
            failures=(*self.failures, *other.failures),
            step_modes=self.step_modes or other.step_modes,
            notes=(*self.notes, *other.notes),
        )


def read_sources(sources: SourceOptions, access: PrometheusOptions) -> ReadSources:
    """Read all that is named, once.

    Raises:
        UsageError: a time or a filter cannot be read.
        InputError: a source has nothing of vLLM.
        SystemFailure: a server does not answer.
    """
    parts = []
    if sources.prometheus is not None:
        parts.append(read_window_of(sources, access, sources.since or HOUR, sources.until))
    urls = [place for place in sources.metrics if "://" in place]
    files = [place for place in sources.metrics if "://" not in place]
    parts += [_scraped(url, sources, access.access(), _instance(url) if len(urls) > 1 else "") for url in urls]
    if files:
        parts.append(read_saved(files, sources))
    if sources.log is not None:
        logged = _logged(sources.log)
        parts.append(logged.without(_names(parts)))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.joined(part)
    return whole


def read_window_of(sources: SourceOptions, access: PrometheusOptions, since: str, until: str | None) -> ReadSources:
    """One window of the Prometheus."""
    from maitre.errors import UsageError
    from maitre.prometheus.client import PrometheusClient
    from maitre.verify.sources.from_prometheus import read_window
    from maitre.workload.langfuse import Selection

    if sources.prometheus is None:
        raise UsageError("a window of the past is asked for, and only a Prometheus keeps it", "--prometheus URL")
    now = datetime.now(UTC)
    since_ms, until_ms = Selection(since=since, until=until).bounds_ms(now)
    end_s = now.timestamp() if until_ms is None else until_ms / 1000
    start_s = end_s - 3600 if since_ms is None else since_ms / 1000
    client = PrometheusClient(sources.prometheus, access.access())
    notes: list[str] = []
    series = read_window(
        client,
        start_s,
        end_s,
        matchers=sources.where,
        model_name=sources.model_name,
        all_models=sources.all_models,
        prefixes=sources.prefix,
        on_note=notes.append,
    )
    return ReadSources(client.address, tuple(series), notes=(*notes, *client.remarks))


def _scraped(url: str, sources: SourceOptions, access: Access, instance: str) -> ReadSources:
    from rich.console import Console

    from maitre.units import parse_duration_s
    from maitre.verify.sources.from_scrapes import scrape_for

    duration_s, every_s = parse_duration_s(sources.for_), parse_duration_s(sources.every)
    with Console(stderr=True).status(f"scraping for {sources.for_}"):
        scraped = scrape_for(url, duration_s, every_s, access, prefixes=sources.prefix, instance=instance)
    return ReadSources(scraped.source, scraped.series, notes=scraped.notes)


def read_saved(files: Sequence[str], sources: SourceOptions) -> ReadSources:
    """Files of saved scrapes."""
    from maitre.cli.budget_sources import chunks_of, source_name
    from maitre.verify.sources.from_scrapes import read_dumps

    scraped = read_dumps([(source_name(path), chunks_of(path)) for path in files], sources.prefix)
    return ReadSources(", ".join(map(source_name, files)), scraped.series, notes=scraped.notes)


def _instance(url: str) -> str:
    """Host and port, by which several servers are told apart."""
    from urllib.parse import urlsplit

    return urlsplit(url).netloc.rpartition("@")[2]


def _names(parts: Sequence[ReadSources]) -> set[str]:
    return {one.name for part in parts for one in part.series}


def _logged(path: str) -> ReadSources:
    from maitre.cli.budget_sources import chunks_of, source_name
    from maitre.verify.deployment import from_startup
    from maitre.verify.evidence import LogFailure
    from maitre.verify.sources.from_log import read_log

    until_s = time.time() if path == "-" else Path(path).stat().st_mtime if Path(path).exists() else None
    read = read_log(chunks_of(path), source_name(path), until_s)
    deployment, failures = NOTHING, read.failures
    if read.startups:
        last = read.startups[-1]
        deployment = from_startup(last)
        if last.failure and not last.is_ready:
            failures = (*failures, LogFailure(last.failure_code or last.failure, last.failure_message or last.failure))
    return ReadSources(source_name(path), read.series, deployment, failures, _step_modes(read.iterations), read.notes)


def _step_modes(steps: IterationTable) -> Modality | None:
    """Whether steps with prompts stall the others; None where too few steps are logged to tell."""
    from maitre.verify.modes.iteration_modes import modes_from_iterations

    if not len(steps):
        return None
    modes = modes_from_iterations(
        steps.num_prefill_tokens, steps.num_generation_requests, steps.elapsed_s, steps.engine
    )
    return None if modes.modality.verdict == "cannot-tell" else modes.modality
