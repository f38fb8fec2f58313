"""What is known of a server's setting, from its command line, its log and its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

from pydantic import Field

from maitre.metric_series import MetricSeries
from maitre.records import Record
from maitre.vllm.metrics_text import CACHE_CONFIG, MetricSample, read_cache_metrics
from maitre.vllm.startup_log_flags import command_flags
from maitre.vllm.startup_log_record import Startup


class Deployment(Record):
    """The setting in force; None: not known. Limits are those of one engine, the pool is that of all of them."""

    model: str | None = None
    version: str | None = None
    max_num_seqs: int | None = Field(default=None, ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    max_num_active_seqs: int | None = Field(default=None, ge=1)
    """Admission cap below max_num_seqs (0.31 and later)."""
    max_num_scheduled_tokens: int | None = Field(default=None, ge=1)
    """Budget of a step below max_num_batched_tokens (0.26 and later)."""
    max_model_len: int | None = Field(default=None, ge=1)
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    kv_cache_dtype: str | None = None
    num_gpu_blocks: int | None = Field(default=None, ge=1)
    block_size: int | None = Field(default=None, ge=1)
    kv_tokens: int | None = Field(default=None, ge=1)
    api_server_count: int | None = Field(default=None, ge=1)
    enable_lora: bool | None = None
    max_loras: int | None = Field(default=None, ge=1)

    @property
    def seqs_limit(self) -> int | None:
        """How many requests one engine runs at once."""
        limits = [limit for limit in (self.max_num_seqs, self.max_num_active_seqs) if limit is not None]
        return min(limits, default=None)

    @property
    def tokens_limit(self) -> int | None:
        """How many tokens one engine schedules in a step."""
        limits = [limit for limit in (self.max_num_batched_tokens, self.max_num_scheduled_tokens) if limit is not None]
        return min(limits, default=None)

    def or_else(self, other: Self) -> Self:
        """What is known here, and from `other` what is not."""
        return self.model_copy(update={name: value for name, value in other if getattr(self, name) is None})


def first_known(deployments: Iterable[Deployment]) -> Deployment:
    """One deployment from several accounts of it; where they differ the earlier one counts."""
    known = Deployment()
    for deployment in deployments:
        known = known.or_else(deployment)
    return known


def from_command(command: str) -> Deployment:
    """The flags of a `vllm serve …` command line.

    Raises:
        UsageError: a flag's value is none.
    """
    flags = command_flags(command)
    return Deployment(**{name: flags[name] for name in Deployment.model_fields if flags.get(name) is not None})


def from_startup(startup: Startup) -> Deployment:
    """The flags and the pool that a start-up log shows; a limit or a pool of 0 is none."""
    shared = {name: getattr(startup, name, None) or None for name in Deployment.model_fields}
    return Deployment(**shared | {"kv_tokens": startup.kv_cache_tokens or None})


def from_series(series: Sequence[MetricSeries]) -> Deployment:
    """What the labels of `cache_config_info` show, summed over engines; where a series says its model, that too."""
    models = {one.labels["model_name"] for one in series if one.labels.get("model_name")}
    cache = read_cache_metrics([MetricSample(one.name, one.labels, 1.0) for one in series if one.name == CACHE_CONFIG])
    shares = {config.gpu_memory_utilization for config in cache.by_engine}
    share = shares.pop() if len(shares) == 1 else None
    return Deployment(
        model=models.pop() if len(models) == 1 else None,
        num_gpu_blocks=cache.num_gpu_blocks or None,
        block_size=cache.block_size or None,
        kv_tokens=cache.kv_tokens or None,
        gpu_memory_utilization=share if share is not None and 0 < share <= 1 else None,
        kv_cache_dtype=next((config.cache_dtype for config in cache.by_engine if config.cache_dtype), None),
    )
