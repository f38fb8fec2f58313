"""`maitre import`: what was measured already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from maitre.cli.numbers import Count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

    from maitre.bench_results import BenchmarkResult, Surface

_LATENCIES = ("mean_ttft_ms", "p99_itl_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "p99_e2el_ms")
_WORDS = {"", "label", "settings"}
_FOLDED = {"label", "settings", "max_num_batched_tokens", "max_num_seqs"}
_ALWAYS = {"", "row", "label", "max_num_seqs", "max_num_batched_tokens", "req/s", "total tok/s", "output tok/s"}


def import_results(
    files: Annotated[list[str], Parameter(negative="", allow_leading_hyphen=True)],
    /,
    *,
    concurrency: Count | None = None,
    request_rate: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Read what was measured already, and say which figures may be compared.

    Reads the text and JSON of vllm bench throughput, serve and sweep, of auto_tune.sh, GuideLLM and AIPerf, and tables
    of rows. Several files, or one with several runs, are compared as one table; max_num_seqs and max_num_batched_tokens
    come from vllm bench --metadata, the log or the file's name (mns256_mnbt8192.json). Exit code 1: not comparable.

    Parameters
    ----------
    files
        Files of results; - is stdin.
    concurrency
        Requests that the client kept in flight at most, where the files do not say.
    request_rate
        Requests/s that the client offered, or inf, where the files do not say.
    json
        Print the result, or the table's verdict, as JSON.
    """
    answer = _import(files, {"concurrency": concurrency, "request_rate": _read_rate(request_rate)})
    if json:
        print(answer.model_dump_json(indent=2))
    else:
        _print_answer(answer)
    return 0 if answer.trust else 1


def _import(files: Sequence[str], said: Mapping[str, Any]) -> BenchmarkResult | Surface:
    """One result on its own, or the surface of several; a table is a surface, however short."""
    from maitre.bench_results import compare, judge, read_results

    read = [read_results(file, said) for file in files]
    results = [judge(run) for runs, _ in read for run in runs]
    if len(results) == 1 and not any(is_table for _, is_table in read):
        return results[0]
    return compare(results)


def _read_rate(text: str | None) -> float | str | None:
    from maitre.errors import UsageError

    if text is None or text == "inf":
        return text
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise UsageError(f"--request-rate '{text}' is no rate", "write requests/s such as 8, or inf")
    return rate


def _print_answer(answer: BenchmarkResult | Surface) -> None:
    from maitre.bench_results import Surface

    if isinstance(answer, Surface):
        _print_surface(answer)
    else:
        _print_result(answer)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def _print_result(result: BenchmarkResult) -> None:
    from rich.markup import escape

    console = _console()
    console.print(f"[bold]{escape(result.source)}[/bold]: {result.tool}")
    console.print(_table(console, [result]))
    _print_findings(result, console)
    if result.trust:
        console.print("[green]may be compared[/green] with runs of the same model and the same requests")
    else:
        console.print("[red]may not be compared[/red]")


def _print_surface(surface: Surface) -> None:
    from rich.markup import escape

    console = _console()
    console.print(_table(console, surface.rows, surface))
    console.print(f"[dim]ranked by {surface.metric or 'nothing'}; noise: {surface.noise_source}[/dim]")
    _print_findings(surface, console)
    _print_row_findings(surface, console)
    colour = "green" if surface.trust else "red"
    console.print(f"[bold {colour}]{surface.verdict or 'no verdict'}[/]: {escape(surface.reasons[0])}")
    for reason in surface.reasons[1:]:
        console.print(f"  {escape(reason)}")
    if surface.recommend:
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in surface.recommend.items())
        console.print(f"recommended: [bold]{flags}[/bold]")


def _print_row_findings(surface: Surface, console: Console) -> None:
    """Doubts about single rows, each kind once with the rows that have it."""
    from rich.markup import escape

    said = {finding.code for finding in surface.findings}
    kinds = {f.code: f for row in surface.rows if row.trust for f in row.findings if f.code not in said}
    for code, finding in kinds.items():
        rows = [number for number, row in enumerate(surface.rows) if code in {f.code for f in row.findings}]
        shown = ", ".join(map(str, rows[:8])) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
        which = f"row{'s' if len(rows) > 1 else ''} {shown}"
        console.print(f"[yellow]{which}: {escape(finding.message)}[/yellow]\n  {escape(finding.remedy)}")


def _print_findings(answer: BenchmarkResult | Surface, console: Console) -> None:
    from rich.markup import escape

    for finding in answer.findings:
        console.print(f"[yellow]{escape(finding.message)}[/yellow]\n  {escape(finding.remedy)}")


def _table(console: Console, rows: Sequence[BenchmarkResult], surface: Surface | None = None) -> Table:
    """One line a run; the columns that some run fills, as many of them as the screen is wide."""
    columns = {name: cells for name, cells in _columns(rows, surface).items() if any(cells)}
    for name in reversed([*columns]):
        if _draw(columns).__rich_measure__(console, console.options.update(width=1000)).maximum <= console.width:
            break
        if name not in _ALWAYS:
            del columns[name]
    return _draw(columns)


def _draw(columns: Mapping[str, Sequence[str]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in columns:
        folded = 30 if name in _FOLDED else None
        table.add_column(name, justify="left" if name in _WORDS else "right", no_wrap=folded is None, max_width=folded)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def _columns(rows: Sequence[BenchmarkResult], surface: Surface | None) -> dict[str, list[str]]:
    return {
        "": [_mark(row, surface) for row in range(len(rows))] if surface else [],
        "row": [str(row) if surface else "" for row in range(len(rows))],
        "label": [row.label or "" for row in rows],
        "max_num_seqs": [_count(row.max_num_seqs) for row in rows],
        "max_num_batched_tokens": [_count(row.max_num_batched_tokens) for row in rows],
        "settings": [_settings(row) for row in rows],
        "clients": [_count(row.concurrency) for row in rows],
        "req/s": [_figure(row.requests_per_s) for row in rows],
        "total tok/s": [_figure(row.total_tokens_per_s) for row in rows],
        "output tok/s": [_figure(row.output_tokens_per_s) for row in rows],
        "tok/s (which?)": [_figure(row.tokens_per_s) for row in rows],
        "failed": [_count(row.failed) for row in rows],
        "ok": [_count(row.successful) for row in rows],
        **{key.removesuffix("_ms").replace("_", " ") + " ms": _latencies(rows, key) for key in _LATENCIES},
    }


def _mark(row: int, surface: Surface) -> str:
    if row in surface.suspicious_rows:
        return "[red]?[/red]"
    if row in surface.duplicate_rows:
        return "[yellow]=[/yellow]"
    return "[green]★[/green]" if row in surface.best_rows else " "


def _settings(row: BenchmarkResult) -> str:
    from rich.markup import escape

    return escape(" ".join(f"{name}={value}" for name, value in row.settings.items() if name != "model"))


def _latencies(rows: Sequence[BenchmarkResult], key: str) -> list[str]:
    return ["" if key in row.ignore else _figure(row.latencies.get(key)) for row in rows]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
