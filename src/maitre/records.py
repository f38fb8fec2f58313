"""What is stored and read: frozen records, unknown keys rejected, a schema version in every stored file.

Schema history
    maitre-workload-1   first version
    maitre-study-1      first version
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator


class Record(BaseModel):
    """A frozen pydantic model that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


def _frozen_array(dtype: type[np.number[Any]]) -> Any:
    """A validator that copies a flat list of numbers, none of them changed on the way, to a read-only array."""

    def convert(value: Any) -> Any:
        try:
            numbers = np.array(value)
        except (ValueError, TypeError, OverflowError):  # a ragged list, for one
            numbers = np.array(None)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iuf"):
            raise ValueError("a flat list of numbers was expected")
        if not np.isfinite(numbers).all():
            raise ValueError("NaN or infinity, a number was expected")
        if np.issubdtype(dtype, np.integer) and numbers.size:
            if (numbers != np.trunc(numbers)).any():
                raise ValueError("a fraction, whole numbers were expected")
            if not -(2**63) <= numbers.min() <= numbers.max() < 2**63:
                raise ValueError("a number of more than 64 bits")
        array: NDArray[Any] = numbers.astype(dtype)
        array.flags.writeable = False
        return array

    return convert


IntArray = Annotated[NDArray[np.int64], BeforeValidator(_frozen_array(np.int64)), PlainSerializer(lambda a: a.tolist())]
FloatArray = Annotated[
    NDArray[np.float64], BeforeValidator(_frozen_array(np.float64)), PlainSerializer(lambda a: a.tolist())
]


# traffic


class Workload(Record):
    """The n requests of a traffic sample: their lengths, and where known their arrivals and prefixes."""

    schema_version: Literal["maitre-workload-1"] = "maitre-workload-1"
    name: str
    source: str
    """Where the requests come from, in words."""
    prompt_tokens: IntArray
    """Shape (n,), each ≥ 1, in order of arrival."""
    output_tokens: IntArray
    """Shape (n,), each ≥ 1."""
    arrival_s: FloatArray | None = None
    """Shape (n,), seconds since the first arrival, non-decreasing; None when the source has no times."""
    latency_s: FloatArray | None = None
    """Shape (n,), measured end-to-end latency of each request in seconds, where the source has it."""
    prefix_hashes: tuple[tuple[int, ...], ...] | None = None
    """One tuple a request: a hash for each chunk of the prompt. Two requests share a prefix as far as these agree."""
    prefix_block_tokens: int | None = None
    """Tokens in one chunk of `prefix_hashes` (Mooncake: 512); the last chunk of a prompt may be shorter."""
    num_dropped: dict[str, int] = Field(default_factory=dict)
    """Rows of the source that are no usable request, counted by reason."""

    @property
    def num_requests(self) -> int:
        """How many requests."""
        return len(self.prompt_tokens)

    @property
    def total_tokens(self) -> int:
        """Prompt and output tokens of all requests."""
        return int(self.prompt_tokens.sum() + self.output_tokens.sum())

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        n = self.num_requests
        columns: dict[str, Sequence[Any] | NDArray[Any] | None] = {
            "output_tokens": self.output_tokens,
            "arrival_s": self.arrival_s,
            "latency_s": self.latency_s,
            "prefix_hashes": self.prefix_hashes,
        }
        for name, column in columns.items():
            if column is not None and len(column) != n:
                raise ValueError(f"{name} has {len(column)} entries, prompt_tokens has {n}")
        if n == 0:
            raise ValueError("no requests")
        if int(self.prompt_tokens.min()) < 1 or int(self.output_tokens.min()) < 1:
            raise ValueError("every request needs at least one prompt token and one output token")
        if self.arrival_s is not None and np.any(np.diff(self.arrival_s) < 0):
            raise ValueError("arrival_s must not decrease")
        if (self.prefix_hashes is None) != (self.prefix_block_tokens is None):
            raise ValueError("prefix_hashes and prefix_block_tokens go together")
        return self


# server and memory


class Cell(Record):
    """One setting of the two dials."""

    max_num_seqs: int = Field(ge=1)
    max_num_batched_tokens: int = Field(ge=1)

    def __str__(self) -> str:
        return f"{self.max_num_seqs}x{self.max_num_batched_tokens}"


class ServerConfig(Record):
    """A vLLM server's settings, in vLLM's own words; what is not here is left at vLLM's default."""

    model: str
    vllm_version: str = "0.26.0"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = Field(default=1, ge=1)
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    max_model_len: int = Field(ge=1)
    block_size: int = Field(default=16, ge=1)
    max_num_seqs: int = Field(ge=1)
    max_num_batched_tokens: int = Field(ge=1)
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = Field(default=0, ge=0)
    watermark: float = Field(default=0.0, ge=0, lt=1)
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"

    @property
    def cell(self) -> Cell:
        """The two dials."""
        return Cell(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.max_num_batched_tokens)

    def at(self, cell: Cell) -> ServerConfig:
        """The same server with the dials turned to `cell`."""
        return self.model_copy(update=cell.model_dump())


class MemoryPart(Record):
    """One share of a GPU's memory."""

    name: str
    num_bytes: int
    source: str
    """The formula or the document that the figure comes from."""


class KvBudget(Record):
    """The KV pool of one GPU at one cell. `num_gpu_blocks` counts vLLM's null block; one block less is usable."""

    kv_bytes_per_token: int | None
    """Bytes that one more token adds on one GPU; None when only the number of blocks is known."""
    fixed_bytes_per_seq: int = 0
    num_gpu_blocks: int = Field(ge=2)
    block_size: int = Field(ge=1)
    parts: tuple[MemoryPart, ...] = ()
    source: str

    @property
    def kv_tokens(self) -> int:
        """Tokens that the usable blocks hold."""
        return (self.num_gpu_blocks - 1) * self.block_size


# results


class Percentiles(Record):
    """Percentiles of a latency in seconds."""

    p50: float
    p95: float
    p99: float
    max: float


BoundBy = Literal["seqs", "token-budget", "kv-blocks", "requests"]
"""What keeps more work out of a step: max_num_seqs, max_num_batched_tokens, free KV blocks, or nothing is waiting."""


class Trial(Record):
    """One cell run over one workload: simulated, recorded and measured alike."""

    max_num_seqs: int
    max_num_batched_tokens: int
    engine: str
    repeat: int = 0
    num_requests: int
    num_steps: int
    duration_s: float
    """First schedule to last output."""
    total_tokens_per_s: float
    """Useful prompt and output tokens over the whole run; tokens computed again after a preemption do not count."""
    output_tokens_per_s: float
    requests_per_s: float
    ttft_s: Percentiles | None
    itl_s: Percentiles | None
    e2e_s: Percentiles | None
    num_preemptions: int
    num_recomputed_tokens: int
    """Tokens computed a second time because of preemptions."""
    cached_token_share: float = 0.0
    """Share of the prompt tokens that the prefix cache answered."""
    kv_usage: float | None
    """Time-weighted mean share of the usable KV blocks in use."""
    kv_usage_max: float | None
    num_gpu_blocks: int | None
    bound_by: BoundBy
    bound_share: dict[BoundBy, float]
    """Share of the run's time in which each limit binds; adds up to 1."""
    client_cpu_share: float | None = None
    """Of a measured trial: CPU time over wall time of the load generator."""
    client_lag_p99_s: float | None = None
    """Of a measured trial: how late the load generator's event loop was."""
    spoiled_by: str = ""
    """Why the load generator's own state makes the figures doubtful; empty when it does not."""

    @property
    def cell(self) -> Cell:
        """The two dials."""
        return Cell(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.max_num_batched_tokens)


class FailedTrial(Record):
    """A cell that could not be measured, and why. The study goes on without it."""

    max_num_seqs: int
    max_num_batched_tokens: int
    engine: str
    code: str
    """One word of `maitre.vllm.failures.FailureCode`, or requests-failed."""
    message: str
    remedy: str
    last_lines: tuple[str, ...] = ()
    """The end of the server's log."""

    @property
    def cell(self) -> Cell:
        """The two dials."""
        return Cell(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.max_num_batched_tokens)


class Limits(Record):
    """Upper bounds of throughput in total tokens/s that no setting can pass (`maitre.limits`)."""

    compute_tokens_per_s: float
    overlap_tokens_per_s: float
    sequential_tokens_per_s: float
    best_simulated_tokens_per_s: float | None = None


class Finding(Record):
    """A doubt about the result, and what to do about it."""

    code: str
    message: str
    remedy: str = ""


class Recommendation(Record):
    """The answer: which cell, what it gains over the present one, and why."""

    recommended: Cell
    baseline: Cell
    worth_changing: bool
    gain: float
    """Throughput ratio minus 1, recommended over baseline."""
    gain_low: float
    gain_high: float
    num_measured: int
    """Cells run on a real server; 0 when the simulator answered."""
    measured_s: float
    """Seconds that those runs took."""
    epsilon: float
    delta: float
    probability_within_epsilon: float | None
    """None when nothing says how far the surface may be off."""
    plateau: tuple[Cell, ...]
    """Cells within epsilon of the best."""
    reason: str
    study: str | None = None
    """Directory of the stored study."""


class Study(Record):
    """Everything about one surface: what was asked, every trial, the answer."""

    schema_version: Literal["maitre-study-1"] = "maitre-study-1"
    maitre_version: str
    engine: str
    server: ServerConfig
    gpu: str
    workload_name: str
    workload_source: str
    num_requests: int
    total_tokens: int
    open_loop: bool = False
    """Requests came at the workload's own times; else all were there at once, and TTFT is mostly time in the queue."""
    calibration: str
    """Which step-time model answered, and how far to trust it."""
    cells: tuple[Trial, ...]
    infeasible: dict[str, str] = Field(default_factory=dict)
    """Cells (`str(Cell)`) that vLLM cannot serve with, and why."""
    failed: tuple[FailedTrial, ...] = ()
    """Cells that could not be measured."""
    budgets: dict[str, KvBudget] = Field(default_factory=dict)
    """KV budget by cell (`str(Cell)`)."""
    limits: Limits | None = None
    findings: tuple[Finding, ...] = ()
    recommended: Cell
    recommendation: Recommendation
