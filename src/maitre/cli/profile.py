"""`maitre profile`: measure the traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from maitre.cli.prometheus_options import ANYBODY, PrometheusOptions
from maitre.cli.trace_output import write_trace
from maitre.cli.workload_options import NO_WORKLOAD, WorkloadOptions

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from maitre.records import Workload
    from maitre.workload import NoRequestsError, WorkloadProfile

_SHADES = ("", "on grey23", "on dark_green", "on dark_goldenrod", "on red3")
"""Backgrounds of the joint histogram for shares of 0, 1, 3, 6 and 10 % and more."""
_MAX_COLUMNS = 11
_MAX_UNCOUNTED_SHARE = 0.05
"""Of streamed answers whose tokens nobody counted: more of them, and the lengths of the rest may be others."""


def profile(
    workload: WorkloadOptions = NO_WORKLOAD,
    access: PrometheusOptions = ANYBODY,
    *,
    mean_latency: str | None = None,
    output: Annotated[str | None, Parameter(name=["--output", "-o"], allow_leading_hyphen=True)] = None,
    to: str | None = None,
    requests: Annotated[bool, Parameter(negative="")] = False,
    max_model_len: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Measure the traffic: lengths, rate, burstiness, shared prefixes and concurrency of a workload.

    Parameters
    ----------
    mean_latency
        Mean end-to-end latency such as 8s, to estimate the concurrency where the table has no latencies.
    output
        Store the workload in this file, for maitre simulate and maitre tune; - is stdout.
    to
        Write the traffic as a trace for a load generator instead, to --output or stdout: mooncake, vllm-bench, guidellm
        or aiperf.
    requests
        With --json: list the kept requests' lengths instead of their percentiles.
    max_model_len
        Prometheus: the server's --max-model-len, such as 8K, which no request that is drawn for --output exceeds.
    json
        Print the profile as JSON.
    """
    from maitre.units import parse_duration_s
    from maitre.workload import NoRequestsError, describe, save_workload

    _check_outputs(output, to, requests=requests, json=json)
    latency_s = parse_duration_s(mean_latency) if mean_latency else None
    if (address := workload.prometheus_address()) is not None:
        from maitre.cli.profile_metrics import profile_metrics

        _refuse_for_metrics(mean_latency, requests=requests)
        return profile_metrics(
            workload, address, access.access(), max_model_len=max_model_len, output=output, to=to, json=json
        )
    access.refuse(max_model_len)
    try:
        traffic = workload.load()
    except NoRequestsError as error:
        if not json:
            raise
        return _print_nothing_usable(error)
    if to is not None:
        return write_trace(traffic, to, output or "-")
    described = describe(traffic, latency_s)
    if output:
        save_workload(traffic, output)
    if json:
        _print_json(described, traffic if requests else None)
    elif output != "-":
        _print_profile(described, output)
    return 0


def _check_outputs(output: str | None, to: str | None, *, requests: bool, json: bool) -> None:
    from maitre.errors import UsageError
    from maitre.workload import TRACE_FORMATS

    if to is not None and json:
        raise UsageError("--to and --json are two answers", "leave one of them out")
    if to is not None and to not in TRACE_FORMATS:
        raise UsageError(f"--to {to}: no such trace format", f"write one of {', '.join(TRACE_FORMATS)}")
    if requests and not json:
        raise UsageError("--requests lists lengths in JSON only", "add --json")
    if json and output == "-":
        raise UsageError("--json and -o - both want stdout", "store the workload in a file")


def _refuse_for_metrics(mean_latency: str | None, *, requests: bool) -> None:
    from maitre.errors import UsageError

    if requests or mean_latency is not None:
        raise UsageError(
            "--requests and --mean-latency are for sources of single requests", "a Prometheus keeps histograms alone"
        )


def _print_json(described: WorkloadProfile, traffic: Workload | None) -> None:
    from json import dumps

    record: dict[str, Any] = described.model_dump(mode="json")
    if traffic is not None:
        record |= {name: getattr(traffic, name).tolist() for name in ("prompt_tokens", "output_tokens")}
    print(dumps(record, indent=None if traffic is not None else 2))


def _print_nothing_usable(error: NoRequestsError) -> int:
    """The record of a source without a usable request: the reasons, and what a server's log tells instead."""
    from json import dumps
    from sys import stderr

    load = error.load
    record = {
        "source": error.source,
        "num_requests": 0,
        "num_dropped": sum(error.num_dropped.values()),
        "drop_reasons": [{"reason": reason, "count": count} for reason, count in error.num_dropped.items()],
        "prompt_tokens": [],
        "output_tokens": [],
        "rate_rps": load.rate_rps if load else None,
        "concurrency_mean": load.concurrency_mean if load else None,
        "concurrency_p95": load.concurrency_p95 if load else None,
        "concurrency_source": "statistics" if load else None,
    }
    print(dumps(record, indent=2))
    print(error, file=stderr)
    return 1


def _print_profile(described: WorkloadProfile, output: str | None) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    console.print(f"[bold]{escape(described.name)}[/bold]: {described.num_requests:,} requests", soft_wrap=True)
    console.print(f"[dim]{escape(described.source)}[/dim]", soft_wrap=True)
    _print_dropped(described, console)
    console.print(_length_table(described))
    for line in _arrival_lines(described):
        console.print(line, soft_wrap=True)
    correlation = described.length_correlation
    words = "" if correlation is None else f"; rank correlation {correlation:.2f}"
    console.print(f"requests in % by prompt tokens (down) and output tokens (across){words}", soft_wrap=True)
    console.print(_joint_table(described))
    _print_next_step(described, output, console)


def _print_dropped(described: WorkloadProfile, console: Console) -> None:
    if not described.num_dropped:
        return
    from maitre.workload.row_rules import UNCOUNTED_HINT, UNCOUNTED_STREAM

    reasons = ", ".join(f"{drop.count:,} {drop.reason}" for drop in described.drop_reasons)
    console.print(f"[yellow]{described.num_dropped:,} rows dropped: {reasons}[/yellow]", soft_wrap=True)
    uncounted = sum(drop.count for drop in described.drop_reasons if drop.reason == UNCOUNTED_STREAM)
    if uncounted > _MAX_UNCOUNTED_SHARE * (described.num_requests + described.num_dropped):
        console.print(f"[yellow]too many to leave out unseen: {UNCOUNTED_HINT}[/yellow]", soft_wrap=True)


def _length_table(described: WorkloadProfile) -> Table:
    from rich.table import Table

    table = Table("tokens", box=None, pad_edge=False)
    fields = ("mean", "p50", "p90", "p95", "p99", "max")
    for field in fields:
        table.add_column(field, justify="right")
    for name, lengths in (("prompt", described.prompt_tokens), ("output", described.output_tokens)):
        table.add_row(name, *(f"{getattr(lengths, field):,.0f}" for field in fields))
    return table


def _arrival_lines(described: WorkloadProfile) -> list[str]:
    """Rate, concurrency and prefixes in words; what is unknown is said to be."""
    from maitre.units import format_seconds

    lines = []
    if described.rate_rps is None or described.duration_s is None or described.arrival_gap_cv is None:
        lines.append("rate: unknown, there are no arrival times, or all are equal")
    else:
        burst = f"gaps vary {described.arrival_gap_cv:.2f}x their mean (Poisson: 1)"
        lines.append(f"rate: {described.rate_rps:.3g} requests/s over {format_seconds(described.duration_s)}; {burst}")
    if described.concurrency_p95 is None or described.concurrency_mean is None:
        needs = "arrival times and latencies" if described.rate_rps is None else "latencies, or --mean-latency 8s"
        lines.append(f"in flight: unknown, it takes {needs}")
    else:
        basis = {"timings": "measured latencies", "little": "the mean latency given"}
        source = basis[described.concurrency_source or "timings"]
        lines.append(
            f"in flight: {described.concurrency_mean:.1f} mean, {described.concurrency_p95:.0f} p95 ({source})"
        )
    if described.ttft_s is not None:
        p50, p95 = format_seconds(described.ttft_s.p50), format_seconds(described.ttft_s.p95)
        lines.append(f"time to first token: {p50} p50, {p95} p95")
    if described.shared_prefix_share is not None:
        lines.append(f"shared prefixes: {described.shared_prefix_share:.1%} of the prompt tokens")
    return lines


def _joint_table(described: WorkloadProfile) -> Table:
    """The joint histogram as a heat map: per cent of the requests, `.` for less than half a per cent."""
    from rich.table import Table

    joint = described.joint_lengths
    rows, prompt_edges = _coarsen(joint.counts, joint.prompt_edges)
    columns, output_edges = _coarsen(tuple(zip(*rows, strict=True)), joint.output_edges)
    counts = tuple(zip(*columns, strict=True))
    table = Table("tokens", box=None, pad_edge=False)
    for edge in output_edges[:-1]:
        table.add_column(f"{_short(edge)}+", justify="right")
    for edge, row in zip(prompt_edges[:-1], counts, strict=True):
        table.add_row(f"{_short(edge)}+", *(_heat(count / described.num_requests) for count in row))
    return table


def _coarsen(
    rows: tuple[tuple[int, ...], ...], edges: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Merge pairs of neighbouring bins until they fit the screen."""
    while len(rows) > _MAX_COLUMNS:
        if len(rows) % 2:
            rows, edges = (*rows, (0,) * len(rows[0])), (*edges, edges[-1] * 2)
        pairs = zip(rows[::2], rows[1::2], strict=True)
        rows = tuple(tuple(a + b for a, b in zip(*pair, strict=True)) for pair in pairs)
        edges = edges[::2]
    return rows, edges


def _short(tokens: int) -> str:
    """A power of two for people: 512, 2K, 1M."""
    for size, suffix in ((2**20, "M"), (2**10, "K")):
        if tokens >= size:
            return f"{tokens // size}{suffix}"
    return str(tokens)


def _heat(share: float) -> str:
    if share == 0:
        return ""
    text = f"{share:.0%}".removesuffix("%") if share > 0.005 else "."
    shade = _SHADES[sum(share >= threshold for threshold in (0.01, 0.03, 0.06, 0.1))]
    return f"[{shade}]{text}[/]" if shade else text


def _print_next_step(described: WorkloadProfile, output: str | None, console: Console) -> None:
    from rich.markup import escape

    from maitre.workload import REFERENCES

    nearest = REFERENCES[described.nearest_reference]
    setting = (
        f"--max-num-seqs {nearest.cell.max_num_seqs} --max-num-batched-tokens {nearest.cell.max_num_batched_tokens}"
    )
    console.print(f"nearest reference: {nearest}; its rule of thumb is {setting}", soft_wrap=True)
    if output:
        console.print(
            f"stored in {escape(output)}: maitre simulate {escape(output)} predicts your settings", soft_wrap=True
        )
    else:
        console.print("store it with -o FILE, then maitre simulate FILE predicts your settings", soft_wrap=True)
