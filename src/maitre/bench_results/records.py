"""What an imported benchmark becomes: a run as its tool wrote it, the judgement on it, and the surface of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, model_serializer

from maitre.records import Finding, Record

SurfaceVerdict = Literal[
    "flat", "client-capped", "seq-capped", "not-saturated", "duplicate-rows", "depends-on-memory", "best-cell"
]
"""flat: all settings are equal within noise. client-capped: the client keeps fewer requests in flight than the limit
allows. seq-capped: throughput still grows at the largest max_num_seqs. not-saturated: the load was too low to test a
limit. duplicate-rows: the best figures are copies. depends-on-memory: another setting of the server decides."""

Setting = str | int | float | bool


class Run(Record):
    """One run of a benchmark, with the figures that its tool wrote. None is unknown, never 0."""

    source: str
    """The file, and which part of it."""
    tool: str
    """`vllm bench serve`, `GuideLLM`, `table` and so on."""
    label: str | None = None
    stage: str | None = None
    """GuideLLM's strategy: synchronous, concurrent, throughput, constant or poisson."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    settings: dict[str, Setting] = Field(default_factory=dict)
    """Further settings of server and workload, by vLLM's names."""
    concurrency: int | None = None
    """Requests that the client keeps in flight at most."""
    request_rate: float | Literal["inf"] | None = None
    """Requests/s that the client offers; inf sends all at once, or as many as `concurrency` allows."""
    peak_concurrency: int | None = None
    """Requests that were in flight at once, as the tool counted them."""
    num_requests: int | None = None
    successful: int | None = None
    failed: int | None = None
    incomplete: int | None = None
    """Requests still running when the time was over."""
    duration_s: float | None = None
    requests_per_s: float | None = None
    total_tokens_per_s: float | None = None
    """Prompt and output tokens."""
    output_tokens_per_s: float | None = None
    tokens_per_s: float | None = None
    """A token rate that does not say whether prompt tokens count."""
    peak_output_tokens_per_s: float | None = None
    total_input_tokens: int | None = None
    total_output_tokens: int | None = None
    latencies: dict[str, float] = Field(default_factory=dict)
    """Milliseconds by vLLM's names: `mean_ttft_ms`, `median_tpot_ms`, `p99_itl_ms`, `mean_e2el_ms`."""
    without_unit: tuple[str, ...] = ()
    """Columns of latencies that do not say whether they are seconds or milliseconds; they are not used."""
    failure: str | None = None
    """Why there is no result, or only half of one, in the words of the tool."""

    @model_serializer(mode="wrap")
    def _with_latencies_beside(self, dump: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Latencies stand beside the other figures, as in the JSON that `vllm bench serve` writes."""
        record = dump(self)
        latencies: dict[str, float] = record.pop("latencies")
        return record | latencies


class BenchmarkResult(Run):
    """A run, and whether its figures may be compared with others."""

    recomputed_requests_per_s: float | None = None
    recomputed_total_tokens_per_s: float | None = None
    """Totals over duration: one definition for all tools."""
    recomputed_output_tokens_per_s: float | None = None
    total_tokens_per_request: float | None = None
    ignore: tuple[str, ...] = ()
    """Figures that are impossible or mean something else than their name says; nothing here uses them."""
    trust: bool
    """Whether the result may be compared with others."""
    reasons: tuple[str, ...] = ()
    """Why not: evidence and remedy."""
    findings: tuple[Finding, ...] = ()
    """Every doubt, those of `reasons` included."""


class GroupVerdict(Record):
    """What the rows of one group say about the limits; row numbers start at 0 and count over the whole table."""

    verdict: SurfaceVerdict | None
    best_rows: tuple[int, ...] = ()
    separable_worse_rows: tuple[int, ...] = ()
    recommend: dict[str, int] | None = None
    reason: str


class Surface(Record):
    """What a table of rows says about the limits, and how far to believe it."""

    verdict: SurfaceVerdict | None
    """None when the rows do not compare settings at all; `reasons` says why."""
    best_rows: tuple[int, ...] = ()
    recommend: dict[str, int] | None = None
    separable_worse_rows: tuple[int, ...] = ()
    suspicious_rows: tuple[int, ...] = ()
    duplicate_rows: tuple[int, ...] = ()
    equal_rows: tuple[int, ...] = ()
    groups: dict[str, GroupVerdict] = Field(default_factory=dict)
    metric: str | None
    """The figure that ranks the rows."""
    noise_rel: float | None
    """Spread of repeated points, (largest - smallest) / mean; None when no point was measured twice."""
    margin_rel: float
    """Difference below which two rows count as equal."""
    noise_source: str
    latency_growth: float | None = None
    """Mean latency at the highest client load over that at the lowest."""
    trust: bool
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    rows: tuple[BenchmarkResult, ...]
