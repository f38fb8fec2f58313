"""Where `maitre verify` looks, and what it is told of the server's limits."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from maitre.cli.numbers import Count

if TYPE_CHECKING:
    from maitre.cli.server_options import ServerOptions
    from maitre.verify.deployment import Deployment


@Parameter(name="*")
@dataclass(frozen=True)
class SourceOptions:
    """What is looked at: a Prometheus API, the server's own /metrics, saved scrapes, or a log."""

    _: KW_ONLY
    prometheus: str | None = None
    """Base URL of a Prometheus-compatible API, with its path before /api/v1."""
    metrics: Annotated[tuple[str, ...], Parameter(negative="", allow_leading_hyphen=True)] = ()
    """URL of a server's /metrics, or a file with one or several scrapes; may be given several times, - is stdin."""
    log: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    """The server's log; - is stdin."""
    since: str | None = None
    """Of Prometheus: ISO 8601 (UTC without a zone) or a time ago, 90min, 24h, 7d; one hour ago when not given."""
    until: str | None = None
    """The same; now when not given."""
    where: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """LABEL=VALUE of the series that count, such as namespace=prod; may be given several times."""
    model_name: str | None = None
    """The model's name in the metrics, where several are served."""
    all_models: Annotated[bool, Parameter(negative="")] = False
    """Judge several models together."""
    prefix: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """What stands for vllm: in the metrics' names, where somebody renamed them."""
    for_: Annotated[str, Parameter(name="--for")] = "60s"
    """How long a URL of --metrics is scraped."""
    every: str = "5s"
    """Time between two scrapes, and between two looks of --watch."""

    def check(self, *, watch: bool, compares: bool) -> None:
        """Whether there is something to look at.

        Raises:
            UsageError: no source, or several that cannot be watched.
        """
        from maitre.errors import UsageError

        if self.prometheus is None and not self.metrics and self.log is None and not compares:
            raise UsageError(
                "nothing to look at is given",
                "--prometheus http://HOST:9090, --metrics http://HOST:8000/metrics or --log FILE",
            )
        if watch and (self.log is not None or len(self.metrics) + (self.prometheus is not None) != 1):
            raise UsageError("--watch looks at one source", "give one URL, with --prometheus or --metrics")


@Parameter(name="*")
@dataclass(frozen=True)
class LimitOptions:
    """The limits in force, as vLLM names them; else they are taken from the command after --, the log or /metrics."""

    _: KW_ONLY
    max_num_seqs: Count | None = None
    """Requests that one engine runs at once."""
    max_num_batched_tokens: str | None = None
    """Tokens that one engine schedules in a step."""
    max_num_active_seqs: Count | None = None
    """Requests that are admitted at once (0.31 and later)."""
    max_num_scheduled_tokens: str | None = None
    """Tokens of a step below the former (0.26 and later)."""
    num_gpu_blocks: Annotated[Count | None, Parameter(name=["--num-gpu-blocks", "--blocks"])] = None
    """The KV pool of all engines in blocks."""
    enable_lora: Annotated[bool, Parameter(negative="")] = False
    """Adapters are served."""
    max_loras: Count | None = None
    """Adapters in one batch."""
    api_server_count: Count | None = None
    """Processes that answer HTTP."""

    def deployment(self, server: ServerOptions, serve_command: str | None, found: Deployment) -> Deployment:
        """All that is known: what is given, then the command, then what the sources show.

        Raises:
            UsageError: a number cannot be read.
        """
        from maitre.verify.deployment import Deployment, first_known, from_command

        given = Deployment(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=_tokens(self.max_num_batched_tokens),
            max_num_active_seqs=self.max_num_active_seqs,
            max_num_scheduled_tokens=_tokens(self.max_num_scheduled_tokens),
            max_model_len=server.model_len(),
            gpu_memory_utilization=server.gpu_memory_utilization,
            kv_cache_dtype=None if server.kv_cache_dtype == "auto" else server.kv_cache_dtype,
            num_gpu_blocks=self.num_gpu_blocks,
            enable_lora=self.enable_lora or None,
            max_loras=self.max_loras,
            api_server_count=self.api_server_count,
        )
        told = [given, *([from_command(serve_command)] if serve_command else [])]
        return first_known([*told, found])


def _tokens(text: str | None) -> int | None:
    from maitre.units import parse_token_count

    return None if text is None else parse_token_count(text)


NO_SOURCE = SourceOptions()
NO_LIMITS = LimitOptions()
