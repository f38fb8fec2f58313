"""`maitre profile prometheus:…`: the traffic as a server's own metrics tell it, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitre.cli.workload_options import DEFAULT_NUM_REQUESTS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from maitre.cli.workload_options import WorkloadOptions
    from maitre.prometheus.access import Access
    from maitre.workload.prometheus import BoundedStatistics, Bounds, MetricsProfile

_FIELDS = ("p50", "p90", "p95", "p99", "max")


def profile_metrics(
    workload: WorkloadOptions,
    address: str,
    access: Access,
    *,
    max_model_len: str | None,
    output: str | None,
    to: str | None,
    json: bool,
) -> int:
    """Ask a Prometheus, and print or store what it tells; the arguments are those of `maitre profile`.

    Raises:
        UsageError, InputError, SystemFailure: as `read_prometheus`.
    """
    from maitre.cli.trace_output import write_trace
    from maitre.units import parse_token_count
    from maitre.workload import save_workload
    from maitre.workload.prometheus import describe_served, draw_served, read_prometheus

    workload.check()
    length = None if max_model_len is None else parse_token_count(max_model_len)
    served = read_prometheus(address, workload.selection(), access)
    if output or to is not None:
        num_requests = DEFAULT_NUM_REQUESTS if workload.num_requests is None else workload.num_requests
        traffic = draw_served(served, num_requests, workload.seed, length)
        if to is not None:
            return write_trace(traffic, to, output or "-")
        save_workload(traffic, output or "-")
    described = describe_served(served)
    if json:
        print(described.model_dump_json(indent=2))
    elif output != "-":
        print_metrics_profile(described, output)
    return 0


def print_metrics_profile(described: MetricsProfile, output: str | None) -> None:
    """Print a profile made from histograms.

    Args:
        described: the profile.
        output: where requests like these were stored; None if nowhere.
    """
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    console.print(
        f"[bold]{escape(described.name)}[/bold]: {described.num_requests:,} requests finished", soft_wrap=True
    )
    console.print(f"[dim]{escape(described.source)}[/dim]", soft_wrap=True)
    console.print(_length_table(described))
    console.print("means are exact; a percentile lies between the bounds of its bucket", soft_wrap=True)
    for line in (*_rate_lines(described), *_server_lines(described), f"assumed: {described.assumption}"):
        console.print(line, soft_wrap=True, markup=False)
    _print_findings(described, console)
    if output:
        told = f"requests like these are stored in {output}: maitre simulate {output} predicts your settings"
        console.print(told, soft_wrap=True, markup=False)
    else:
        console.print("store requests like these with -o FILE, then maitre simulate FILE predicts your settings")


def _length_table(described: MetricsProfile) -> Table:
    from rich.table import Table

    table = Table("tokens", box=None, pad_edge=False)
    for field in ("mean", *_FIELDS):
        table.add_column(field, justify="right")
    rows = (("prompt", described.prompt_tokens), ("output", described.output_tokens), ("allowed", described.max_tokens))
    for name, lengths in rows:
        if lengths is not None:
            table.add_row(name, *_cells(lengths))
    return table


def _cells(lengths: BoundedStatistics) -> list[str]:
    mean = "" if lengths.mean is None else f"{lengths.mean:,.0f}"
    return [mean, *(_words(getattr(lengths, field)) for field in _FIELDS)]


def _words(bounds: Bounds) -> str:
    return f"over {bounds.low:,.0f}" if bounds.high is None else f"{bounds.low:,.0f} to {bounds.high:,.0f}"


def _rate_lines(described: MetricsProfile) -> list[str]:
    from maitre.units import format_seconds

    lasted = format_seconds(described.duration_s)
    line = f"rate: {described.rate_rps:.3g} requests/s finished over {lasted}"
    if described.rate_per_minute_rps is not None and described.burstiness is not None:
        rates = described.rate_per_minute_rps
        each = f"{rates.width_s // 60}-minute rates"
        line += f"; {each}: {rates.p50:.3g} p50, {rates.p95:.3g} p95, peak {described.burstiness:.2f}x the mean"
    lines = [line]
    if described.concurrency_mean is None or described.concurrency_p95 is None:
        lines.append("in flight: unknown, num_requests_running is not there")
    else:
        in_flight = f"in flight: {described.concurrency_mean:.1f} mean, {described.concurrency_p95:.0f} p95 (gauges"
        waiting = described.waiting_mean
        lines.append(in_flight + (")" if waiting is None else f", of them {waiting:.1f} waiting)"))
    if described.little_concurrency is not None and described.mean_latency_s is not None:
        lasts = format_seconds(described.mean_latency_s)
        lines.append(f"mean latency: {lasts}; rate x latency is {described.little_concurrency:.1f} in flight")
    return lines


def _server_lines(described: MetricsProfile) -> list[str]:
    from maitre.units import format_seconds

    lines = []
    ttft = described.ttft_s
    if ttft is not None and ttft.mean is not None:
        p95 = f"over {ttft.p95.low:g} s" if ttft.p95.high is None else f"{ttft.p95.low:g} to {ttft.p95.high:g} s"
        lines.append(f"time to first token: {format_seconds(ttft.mean)} mean, {p95} p95")
    if described.prefix_cache_hit_rate is not None:
        lines.append(f"prefix cache: {described.prefix_cache_hit_rate:.1%} of the prompt tokens")
    if described.output_share_of_max_tokens is not None:
        lines.append(f"max_tokens: {described.output_share_of_max_tokens:.0%} of what was allowed is used")
    if len(described.finished_reasons) > 1:
        total = sum(described.finished_reasons.values())
        shares = sorted(described.finished_reasons.items(), key=lambda item: -item[1])
        lines.append("ended by: " + ", ".join(f"{reason} {count / total:.1%}" for reason, count in shares))
    return lines


def _print_findings(described: MetricsProfile, console: Console) -> None:
    from rich.markup import escape

    for finding in described.findings:
        console.print(f"[yellow]note: {escape(f'{finding.message}; {finding.remedy}')}[/yellow]", soft_wrap=True)
