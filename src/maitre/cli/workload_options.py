"""How every verb that needs traffic is told which: a file, a spec, or a reference workload."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from maitre.cli.numbers import Whole
from maitre.errors import UsageError

if TYPE_CHECKING:
    from maitre.records import Workload
    from maitre.workload import Selection

DEFAULT_NUM_REQUESTS = 1000
"""To draw, where neither the user nor a grid says how many."""


def _refuse_options(_type: Any, value: str | None) -> None:
    # the workload may be `-`; every other leading hyphen is an option that does not exist
    if value and value.startswith("-") and value != "-":
        raise ValueError("There is no such option.")


@Parameter(name="*")
@dataclass(frozen=True)
class WorkloadOptions:
    """The traffic: WORKLOAD or --reference, and how to read a table's columns."""

    workload: Annotated[str | None, Parameter(allow_leading_hyphen=True, validator=_refuse_options)] = None
    """A request table (CSV, TSV, JSON, JSONL, Parquet, also .gz), OTLP traces, vLLM's log, a stored workload, - for
    stdin, langfuse:https://HOST, prometheus:https://HOST, or a spec such as lognormal:500:0.8:250:0.8 or
    fixed:512:256."""
    _: KW_ONLY
    reference: str | None = None
    """A reference workload instead: chat, rag, coding, summarisation or batch."""
    num_requests: Whole | None = None
    """Requests to draw from a spec or a reference (1000 when not given; four a slot where there is a grid), or at most
    to take from a file: the first ones in time, or a random sample when there are no times."""
    seed: Whole = 0
    """Seed of the draw."""
    prompt_column: str | None = None
    """Column of the prompt lengths in tokens; nested JSON fields as usage.prompt_tokens. Recognised when not given."""
    output_column: str | None = None
    """Column of the output lengths in tokens."""
    time_column: str | None = None
    """Column of the arrival times; NAME:ms names the unit (s, ms, us, ns), none leaves arrivals out."""
    latency_column: str | None = None
    """Column of the end-to-end latencies; NAME:ms names the unit, none leaves them out."""
    since: str | None = None
    """Langfuse, Prometheus: calls from this time on, as 2026-11-01T08:00Z or 7d (ago); Langfuse's server gives 7 days
    when not given, Prometheus 24 hours."""
    until: str | None = None
    """Langfuse, Prometheus: calls before this time; when not given, 15 minutes ago from Langfuse's server."""
    where: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """Langfuse: only calls with model=M, name=N, tag=T or environment=E. Prometheus: only series with model=M or with a
    label, as namespace=prod. Of several with one key, any may hold."""

    def load(self, default_num_requests: int = DEFAULT_NUM_REQUESTS, max_model_len: int | None = None) -> Workload:
        """Load the workload that the options name.

        Args:
            default_num_requests: how many requests to draw from a spec or a reference without --num-requests.
            max_model_len: the server's, in tokens, which no request that is drawn from histograms exceeds.

        Raises:
            UsageError: both or neither of WORKLOAD and --reference are given, or a value is wrong.
            InputError: the file, a line or a column is wrong.
        """
        from maitre.cli.fetch_progress import fetch_progress
        from maitre.cli.read_status import read_status
        from maitre.workload import Columns, load_workload, reference_workload

        self.check()
        selection = self.selection()
        if self.reference is not None:
            selection.refuse(f"--reference {self.reference}")
            num_requests = default_num_requests if self.num_requests is None else self.num_requests
            return reference_workload(self.reference, num_requests, self.seed)
        columns = Columns(
            prompt=self.prompt_column, output=self.output_column, time=self.time_column, latency=self.latency_column
        )
        with read_status(self.workload), fetch_progress() as show:
            return load_workload(
                self.workload or "",
                columns=columns,
                num_requests=self.num_requests,
                default_num_requests=default_num_requests,
                seed=self.seed,
                selection=selection,
                on_progress=show,
                max_model_len=max_model_len,
            )

    def selection(self) -> Selection:
        """What of a server counts."""
        from maitre.workload import Selection

        return Selection(since=self.since, until=self.until, where=self.where)

    def prometheus_address(self) -> str | None:
        """The address of a Prometheus, where WORKLOAD names one."""
        from maitre.workload import prometheus_address

        return None if self.workload is None else prometheus_address(self.workload)

    def check(self) -> None:
        """Whether the options go together.

        Raises:
            UsageError: both or neither of WORKLOAD and --reference are given, or columns of what has none.
        """
        if (self.workload is None) == (self.reference is None):
            what = "no workload is given" if self.workload is None else "WORKLOAD and --reference are both given"
            raise UsageError(what, "name a file or a spec such as fixed:512:256, or --reference chat; see --help")
        columns = (self.prompt_column, self.output_column, self.time_column, self.latency_column)
        if self.reference is not None and any(column is not None for column in columns):
            raise UsageError("a reference workload has no columns", "leave the --…-column options out")
        if any(column is not None for column in columns) and self.prometheus_address() is not None:
            raise UsageError("a Prometheus has no columns", "leave the --…-column options out")


NO_WORKLOAD = WorkloadOptions()
"""Nothing given yet: the default of a verb's parameter."""
