"""What a server's `/metrics` says before, during and after a run, and what of it is other clients' doing.

Family names are those of vLLM 0.4.2 to 0.33.0 (`engine/metrics.py`, `v1/metrics/loggers.py`); of two names of the same
thing the newer one counts. Counters and numbers of requests are summed over engines, KV usage is the fullest engine's.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from maitre.errors import SystemFailure
from maitre.trial.load import LoadResult
from maitre.trial.probe import get
from maitre.vllm.metric_families import KV_USAGE
from maitre.vllm.metrics_text import CACHE_CONFIG, parse_metrics_text

SCRAPE_S = 1.0
"""Between two looks: an answer takes the server's front end some milliseconds, in which it sends no tokens."""
SETTLE_S = 5.0
"""How long counters may lag behind the last answer."""
LATE_S = 2.0
"""How old a gauge may be when it is asked for: the engine's steps set it, and tokens take time to the client."""

_SUMS = {
    "num_running": ("vllm:num_requests_running",),
    "num_waiting": ("vllm:num_requests_waiting",),
    "num_preemptions": ("vllm:num_preemptions_total",),
    "num_finished": ("vllm:request_success_total",),
    "num_output_tokens": ("vllm:generation_tokens_total",),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
}


@dataclass(frozen=True, slots=True)
class MetricsSample:
    """One look. None: the server does not show it."""

    time_s: float
    """When the answer was there, on the machine's monotonic clock."""
    wait_s: float = 0.0
    """How long it took."""
    num_running: float | None = None
    num_waiting: float | None = None
    kv_usage: float | None = None
    num_preemptions: float | None = None
    num_finished: float | None = None
    num_output_tokens: float | None = None
    prefix_hits: float | None = None
    """In tokens, before 0.9.0 in blocks; as are the queries."""
    prefix_queries: float | None = None
    cache_config: dict[str, str] = field(default_factory=dict)
    """Labels of `cache_config_info` (0.5.5 and later)."""

    @property
    def num_gpu_blocks(self) -> int | None:
        """The KV pool of one engine, the null block included."""
        text = self.cache_config.get("num_gpu_blocks", "")
        return int(text) if text.isdecimal() and len(text) < 16 else None


def parse_metrics(text: str, time_s: float, wait_s: float = 0.0) -> MetricsSample:
    """Read a scrape of `/metrics`; negative gauges and those that are no numbers are passed over.

    Args:
        text: the answer.
        time_s: when it was there, on the machine's monotonic clock.
        wait_s: how long it took.
    """
    families: dict[str, list[float]] = {}
    cache_config: dict[str, str] = {}
    for sample in parse_metrics_text(text):
        if sample.name == CACHE_CONFIG:
            cache_config = dict(sample.labels)
        elif math.isfinite(sample.value) and sample.value >= 0:
            families.setdefault(sample.name, []).append(sample.value)
    sums = {field: _first(families, names, sum) for field, names in _SUMS.items()}
    return MetricsSample(time_s, wait_s, kv_usage=_first(families, KV_USAGE, max), cache_config=cache_config, **sums)


def scrape(base_url: str, api_key: str | None) -> MetricsSample:
    """Ask a server now.

    Raises:
        SystemFailure: no answer.
    """
    asked_s = time.monotonic()
    answer = get(f"{base_url}/metrics", api_key)
    now_s = time.monotonic()
    return parse_metrics(answer.body.decode("utf-8", errors="replace"), now_s, now_s - asked_s)


def settled(base_url: str, api_key: str | None, before: MetricsSample, num_sent: int) -> MetricsSample:
    """The counters once they have the requests sent since `before`, or as they are after `SETTLE_S`."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        sample = scrape(base_url, api_key)
        num_more = _delta(before.num_finished, sample.num_finished)
        is_idle = not (sample.num_running or sample.num_waiting)
        if num_more is None or (num_more >= num_sent and is_idle) or time.monotonic() > deadline:
            return sample
        time.sleep(0.1)


class MetricsWatch:
    """Looks at `/metrics` every `SCRAPE_S` from another thread, as long as its context lasts."""

    def __init__(self, base_url: str, api_key: str | None) -> None:
        self.samples: list[MetricsSample] = []
        self._base_url, self._api_key = base_url, api_key
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="maitre-metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(SCRAPE_S):
            with suppress(SystemFailure):  # one look less
                self.samples.append(scrape(self._base_url, self._api_key))


@dataclass(frozen=True, slots=True)
class ServerSide:
    """What a server says of one run."""

    before: MetricsSample
    during: tuple[MetricsSample, ...]
    after: MetricsSample

    @property
    def num_preemptions(self) -> int | None:
        """Preemptions in the run."""
        more = _delta(self.before.num_preemptions, self.after.num_preemptions)
        return None if more is None else round(more)

    @property
    def cached_token_share(self) -> float | None:
        """Prefix-cache hits over queries in the run; None if the server does not count them."""
        hits = _delta(self.before.prefix_hits, self.after.prefix_hits)
        queries = _delta(self.before.prefix_queries, self.after.prefix_queries)
        return hits / queries if hits is not None and queries else None

    @property
    def kv_usage(self) -> tuple[float, float] | None:
        """Mean and largest share of the KV blocks in use, over the looks; None without any."""
        usage = [sample.kv_usage for sample in self.during if sample.kv_usage is not None]
        return (float(np.mean(usage)), max(usage)) if usage else None

    def other_traffic(self, result: LoadResult) -> str:
        """Why somebody else must have been served, in words; empty when nothing speaks for it.

        Args:
            result: our own requests, all of them without an error.
        """
        reasons = []
        busy = (self.before.num_running or 0) + (self.before.num_waiting or 0)
        if busy:
            reasons.append(f"requests on it before the run began: {busy:.0f}")
        others = _more_than(self.before.num_finished, self.after.num_finished, len(result.outcomes))
        if others:
            reasons.append(f"other requests that it finished: {others}")
        tokens = _more_than(self.before.num_output_tokens, self.after.num_output_tokens, result.num_tokens)
        if tokens and not others:
            reasons.append(f"other tokens that it generated: {tokens:,}")
        most = max((_surplus(sample, result) for sample in self.during), default=0)
        if most > 0:
            reasons.append(f"requests on it beyond those of the run: {most}")
        return f"the server served others, too: {', '.join(reasons)}" if reasons else ""


def _surplus(sample: MetricsSample, result: LoadResult) -> int:
    """Requests on the server beyond ours; a gauge may be `LATE_S` old when it is asked for: all since then count."""
    now_s = sample.time_s - result.start_s
    since_s = now_s - sample.wait_s - LATE_S
    ours = sum(o.sent_s <= now_s and (o.last_token_s or math.inf) >= since_s for o in result.outcomes)
    return round((sample.num_running or 0) + (sample.num_waiting or 0)) - ours


def _more_than(before: float | None, after: float | None, num_ours: int) -> int:
    more = _delta(before, after)
    return 0 if more is None else max(0, round(more) - num_ours)


def _delta(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _first(
    families: dict[str, list[float]], names: Sequence[str], combine: Callable[[list[float]], float]
) -> float | None:
    """The combined value of the first family that is there."""
    return next((combine(families[name]) for name in names if name in families), None)
