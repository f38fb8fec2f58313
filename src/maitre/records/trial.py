"""What came of running one cell."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from maitre.records.record import Record
from maitre.records.server import AtCell


class Percentiles(Record):
    """Percentiles of a latency in seconds."""

    p50: float
    p95: float
    p99: float
    max: float


BoundBy = Literal["seqs", "token-budget", "kv-blocks", "requests"]
"""What keeps more work out of a step: max_num_seqs, max_num_batched_tokens, free KV blocks, or nothing is waiting."""


class SteadyWindow(Record):
    """The part of a burst in which the server is full and its sequences are of all ages (`maitre.trial.steady`)."""

    rule: str
    """Name of the rule that found the window."""
    begin_s: float
    """Seconds since the run began."""
    end_s: float
    total_tokens_per_s: float
    """Useful prompt and output tokens in the window over its length."""
    total_tokens_per_s_low: float | None
    """95 % interval of the long-run mean by batch means (`maitre.trial.batch_means`): how far another draw of requests
    from the same traffic may move the figure. None if the window is too short to tell."""
    total_tokens_per_s_high: float | None
    num_batches: int
    """0 without an interval."""
    lag1_autocorrelation: float | None
    """Of the batches; the interval is widened if it is above 0."""


class TargetAttainment(Record):
    """One latency target, held against one run."""

    target: str
    """Such as ttft_p95=500ms."""
    value_s: float | None
    """The percentile that the target speaks of; None if no request has this latency."""
    share: float
    """Share of the requests (itl: of the tokens) that are within the limit; 1 if there are none."""
    met: bool


class Attainment(Record):
    """Latency targets, held against one run (`maitre.trial.attainment`)."""

    met: bool
    """Every target is met at its own percentile."""
    num_attaining: int
    """Requests that are within all limits at once."""
    share: float
    """Their share of all requests."""
    share_low: float
    """95 % interval (Wilson) of the share, as if requests were independent."""
    share_high: float
    goodput_rps: float
    """Requests within all limits over the whole run's time."""
    by_target: tuple[TargetAttainment, ...]


class HighestRate(Record):
    """The highest rate of requests at which latency targets hold in one cell (`maitre.trial.highest_rate`)."""

    rate_rps: float = Field(ge=0)
    """Mean rate of the arrivals, requests/s; the trial's other figures are those of a run at this rate. 0: the targets
    are not met even if each request has the server to itself, as it has in that run."""
    bound_by: str
    """The target that a higher rate would not meet, such as itl_p99=50ms, or capacity: the queue would grow."""
    capacity_rps: float = Field(gt=0)
    """What the cell serves when somebody always waits, requests/s."""
    confirmed_rps: float | None = None
    """The highest rate at which a run on a real server met the targets; None if none did, or none was made."""


class Trial(AtCell):
    """One cell run over one workload: simulated, recorded and measured alike."""

    engine: str
    repeat: int = 0
    cut_short: bool = False
    """The run was ended early: the figures are the simulator's, scaled to the steps that were measured."""
    num_requests: int
    num_steps: int | None
    """None, here and below, if what measured cannot tell."""
    duration_s: float
    """First schedule to last output."""
    total_tokens_per_s: float
    """Useful prompt and output tokens over the whole run; tokens computed again after a preemption do not count."""
    output_tokens_per_s: float
    requests_per_s: float
    ttft_s: Percentiles | None
    itl_s: Percentiles | None
    e2e_s: Percentiles | None
    tpot_s: Percentiles | None = None
    """Time per output token of a request: (last token - first token) / (output tokens - 1). None if no request has two
    output tokens."""
    steady: SteadyWindow | None = None
    """None if the queue empties too early, or requests came at their own times."""
    attainment: Attainment | None = None
    """None if no latency targets were given."""
    arrival_rps: float | None = None
    """Mean rate at which a measured run's requests were sent, where it was chosen for the run; None elsewhere."""
    highest_rate: HighestRate | None = None
    """None unless the objective is the highest rate."""
    num_preemptions: int | None
    num_recomputed_tokens: int | None
    """Tokens computed a second time because of preemptions."""
    cached_token_share: float | None = 0.0
    """Share of the prompt tokens that the prefix cache answered."""
    kv_usage: float | None
    """Time-weighted mean share of the usable KV blocks in use."""
    kv_usage_max: float | None
    num_gpu_blocks: int | None
    bound_by: BoundBy | None
    bound_share: dict[BoundBy, float]
    """Share of the run's time in which each limit binds; adds up to 1, or is empty if nobody can tell."""
    client_ttft_s: Percentiles | None = None
    """Of a measured trial with streaming: time to first token as the load generator saw it."""
    client_itl_s: Percentiles | None = None
    client_cpu_share: float | None = None
    """Of a measured trial: CPU time over wall time of the load generator."""
    client_lag_p99_s: float | None = None
    """Of a measured trial: how late the load generator's event loop was."""
    spoiled_by: str = ""
    """Why the load generator's own state makes the figures doubtful; empty when it does not."""


class FailedTrial(AtCell):
    """A cell that could not be measured, and why. The study goes on without it."""

    engine: str
    code: str
    """One word of `maitre.vllm.failures.FailureCode`, or requests-failed."""
    message: str
    remedy: str
    last_lines: tuple[str, ...] = ()
    """The end of the server's log."""
