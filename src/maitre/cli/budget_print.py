"""The budget on the terminal: parts, pool, what was logged beside it, and the pool at other dials."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from maitre.cli.budget_compare import Comparison, PoolAtDials
    from maitre.records import KvBudget
    from maitre.vllm.metrics_text import CacheMetrics
    from maitre.vllm.startup_log_record import Startup


def console() -> Console:
    """Where the budget goes."""
    from rich.console import Console

    return Console(highlight=False)


def print_pool(pool: KvBudget) -> None:
    """The parts of a computed pool and the pool."""
    from rich.markup import escape

    out = console()
    out.print(f"[dim]{escape(pool.source)}[/dim]", soft_wrap=True)
    if pool.parts:
        out.print(_parts_table(pool))
    per_token = f", {pool.kv_bytes_per_token:,} B a token" if pool.kv_bytes_per_token else ""
    fixed = f", {pool.fixed_bytes_per_seq:,} B a sequence" if pool.fixed_bytes_per_seq else ""
    out.print(
        f"KV pool: {pool.num_gpu_blocks:,} blocks of {pool.block_size}{per_token}{fixed}; "
        f"[bold]{pool.kv_tokens:,} tokens[/bold] (one block is vLLM's own)",
        soft_wrap=True,
    )


def print_lines(lines: Sequence[str]) -> None:
    """Lines with rich's markup, never broken."""
    out = console()
    for line in lines:
        out.print(line, soft_wrap=True)


def _parts_table(pool: KvBudget) -> Table:
    from rich.table import Table

    from maitre.units import GIB

    table = Table("part", box=None, padding=(0, 2, 0, 0))
    for name in ("GiB", "bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("source", style="dim")
    for part in pool.parts:
        table.add_row(part.name, f"{part.num_bytes / GIB:,.2f}", f"{part.num_bytes:,}", part.source)
    return table


def startup_lines(startup: Startup) -> list[str]:
    """What a start-up log says, in words."""
    from rich.markup import escape

    lines = [f"  KV pool: {_pool_words(startup)}"]
    if startup.available_kv_gib is not None:
        lines.append(f"  memory for it: {startup.available_kv_gib:,.2f} GiB on each GPU")
    if startup.combine_rule is not None:
        lines.append(f"  combined from several lines: {startup.combine_rule}")
    lines.append(f"  in force: {escape(_flag_words(startup))}")
    lines += [f"  note: {escape(note)}" for note in startup.notes]
    if startup.failure_message is not None:
        lines.append(f"  [red]failed[/red] ({startup.failure_code}): {escape(startup.failure_message)}")
        lines.append(f"  to change: {escape(startup.remedy or '')}")
    return lines


def _pool_words(startup: Startup) -> str:
    words = []
    if startup.kv_cache_tokens is not None:
        words.append(f"[bold]{startup.kv_cache_tokens:,} tokens[/bold]")
    if startup.num_gpu_blocks is not None:
        size = f" of {startup.block_size}" if startup.block_size else ""
        words.append(f"{startup.num_gpu_blocks:,} blocks{size}")
    if startup.max_concurrency is not None and startup.max_concurrency_at_len is not None:
        words.append(f"{startup.max_concurrency:,.2f} requests of {startup.max_concurrency_at_len:,} tokens at once")
    return "; ".join(words) or "not printed"


def _flag_words(startup: Startup) -> str:
    flags = (
        "max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization", "tensor_parallel_size",
        "pipeline_parallel_size", "data_parallel_size", "kv_cache_dtype", "num_gpu_blocks_override",
    )  # fmt: skip
    words = []
    for flag in flags:
        value = getattr(startup, flag)
        if value is None and flag.startswith("max_num"):
            words.append(f"{flag} not printed")
        elif value is not None and not (flag.endswith("parallel_size") and value == 1):
            words.append(f"{flag} {value:,}" if isinstance(value, int) else f"{flag} {value}")
    return ", ".join(words)


def print_metrics(found: CacheMetrics, name: str) -> None:
    """What a scrape says of the KV cache."""
    tokens = "not exposed" if found.kv_tokens is None else f"[bold]{found.kv_tokens:,} tokens[/bold]"
    size = f" of {found.block_size}" if found.block_size else ""
    blocks = "" if found.num_gpu_blocks is None else f"; {found.num_gpu_blocks:,} blocks{size}"
    engines = "" if found.engines < 2 else f" over {found.engines} engines"
    print_lines([name, f"  KV pool: {tokens}{blocks}{engines}"])


def print_comparison(comparison: Comparison) -> None:
    """Computed and logged side by side, and why they differ."""
    from rich.table import Table

    table = Table("GiB on one GPU", box=None, padding=(0, 2, 0, 0))
    for name in ("computed", "logged", "for the pool"):
        table.add_column(name, justify="right")
    for side in comparison.sides:
        is_pool = side is comparison.sides[-1]
        gain = comparison.difference_gib if is_pool else side.explains_gib
        table.add_row(side.name, f"{side.computed_gib:,.2f}", _gib(side.logged_gib), _signed(gain))
    logged = comparison.logged_kv_tokens
    computed = comparison.computed_kv_tokens
    tokens = ("–" if number is None else f"{number:,}" for number in (computed, logged))
    table.add_row("KV pool, tokens", *tokens, "")
    console().print(table)
    print_lines([f"  {line}" for line in comparison.explanations])


def _gib(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 2) + 0.0:+,.2f}"


def print_dials(cells: Sequence[PoolAtDials], correction_gib: float | None) -> None:
    """The pool as a function of both dials."""
    from rich.table import Table

    budgets = sorted({cell.max_num_batched_tokens for cell in cells})
    found = {(cell.max_num_seqs, cell.max_num_batched_tokens): cell for cell in cells}
    table = Table("max_num_seqs", box=None, padding=(0, 2, 0, 0))
    for tokens in budgets:
        table.add_column(f"{tokens:,}", justify="right")
    for seqs in sorted({cell.max_num_seqs for cell in cells}):
        table.add_row(f"{seqs:,}", *(_dial(found.get((seqs, tokens))) for tokens in budgets))
    print_lines([f"KV pool in tokens by max_num_seqs and max_num_batched_tokens{_corrected(correction_gib)}:"])
    console().print(table)


def _corrected(correction_gib: float | None) -> str:
    return "" if correction_gib is None else f", corrected by {_signed(correction_gib)} GiB as logged"


def _dial(cell: PoolAtDials | None) -> str:
    if cell is None:
        return "–"
    if cell.kv_tokens is None:
        return "too small"
    return f"[bold]{cell.kv_tokens:,}[/bold]" if cell.is_present else f"{cell.kv_tokens:,}"
