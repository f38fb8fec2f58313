"""`maitre budget`: know the KV cache before a server is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from maitre.cli.numbers import Count
from maitre.cli.server_options import NO_SERVER, ServerOptions
from maitre.cli.workload_options import NO_WORKLOAD, WorkloadOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.table import Table

    from maitre.records import KvBudget, ServerConfig

    IntVector = NDArray[np.int64]


def budget(
    workload: WorkloadOptions = NO_WORKLOAD,
    server: ServerOptions = NO_SERVER,
    *,
    max_num_seqs: Count | None = None,
    max_num_batched_tokens: str | None = None,
    blocks: Count | None = None,
    compiled: Annotated[bool, Parameter(negative="")] = False,
    prompt_tokens: Count | None = None,
    output_tokens: Count | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Know the KV cache: what fills the GPU's memory, and how many sequences really fit.

    Parameters
    ----------
    max_num_seqs
        Most sequences that run at once; vLLM's default for the GPU when not given.
    max_num_batched_tokens
        Token budget of one step, such as 8192 or 8K; vLLM's default for the GPU when not given.
    blocks
        The pool of a running server instead of --gpu: num_gpu_blocks from vLLM's log or metrics.
    compiled
        vLLM finds its compiled graphs in the cache, as every later start of the same shape does: a larger pool.
    prompt_tokens
        Prompt length to count sequences at, instead of a workload.
    output_tokens
        Output length to count sequences at, instead of a workload.
    json
        Print the budget as JSON.
    """
    if server.model is not None and server.gpu is None and blocks is None:
        return _print_bytes_per_token(server, as_json=json)
    if blocks is not None:
        pool, later, config = _given_pool(server, blocks), None, None
    else:
        pool, later, config = _estimated_pool(server, max_num_seqs, max_num_batched_tokens, compiled=compiled)
    lengths = _lengths(workload, prompt_tokens, output_tokens)
    fit = _fit(pool, lengths, config.max_model_len if config else server.model_len())
    if json:
        _print_json(pool, config, fit)
    else:
        _print_budget(pool, config, fit, lengths)
        _print_later_pool(pool, later)
    return 0


def _given_pool(options: ServerOptions, blocks: int) -> KvBudget:
    """The pool that --blocks names."""
    from maitre.errors import UsageError
    from maitre.kv_budget import kv_budget_from_blocks
    from maitre.models import load_attention

    if options.gpu is not None:
        raise UsageError("--blocks gives the pool, --gpu would compute it", "leave one of them out")
    return kv_budget_from_blocks(
        blocks,
        options.block_size,
        load_attention(options.model) if options.model is not None else None,
        kv_cache_dtype=options.kv_cache_dtype,
        tensor_parallel_size=options.tensor_parallel_size,
        dtype=options.dtype,
    )


def _estimated_pool(
    options: ServerOptions, max_num_seqs: int | None, max_num_batched_tokens: str | None, *, compiled: bool
) -> tuple[KvBudget, KvBudget | None, ServerConfig]:
    """The pool of the server that the flags start, that of a later start where it differs, and the server."""
    from maitre.errors import UsageError
    from maitre.kv_budget import estimate_kv_budget
    from maitre.units import parse_token_count

    if options.model is None:
        raise UsageError("no model is given", "--model NAME_OR_DIRECTORY --gpu GPU, or --blocks N for a known pool")
    model, gpu = options.load()
    tokens = parse_token_count(max_num_batched_tokens) if max_num_batched_tokens is not None else None
    config = options.server(model, gpu, max_num_seqs, tokens)
    later = estimate_kv_budget(model, gpu, config, compiles=False)
    return (later, None, config) if compiled else (estimate_kv_budget(model, gpu, config), later, config)


def _lengths(
    options: WorkloadOptions, prompt_tokens: int | None, output_tokens: int | None
) -> tuple[IntVector, IntVector] | None:
    """Prompt and output lengths to count sequences at, or None when the command line names none."""
    import numpy as np

    from maitre.errors import UsageError

    named = options.workload is not None or options.reference is not None
    if prompt_tokens is None and output_tokens is None:
        if not named:
            return None
        traffic = options.load()
        return traffic.prompt_tokens, traffic.output_tokens
    if named or prompt_tokens is None or output_tokens is None:
        raise UsageError(
            "give either a workload or both --prompt-tokens and --output-tokens",
            "--prompt-tokens 512 --output-tokens 256",
        )
    return np.array([prompt_tokens]), np.array([output_tokens])


def _fit(
    pool: KvBudget, lengths: tuple[IntVector, IntVector] | None, max_model_len: int | None
) -> dict[str, float | None]:
    """Sequences that fit, by the keys of the JSON output; None where no length is known."""
    from maitre.kv_budget import max_seqs, max_seqs_of_length

    fit: dict[str, float | None] = dict.fromkeys(("max_seqs", "max_seqs_full_length", "max_seqs_at_max_model_len"))
    if lengths:
        found = max_seqs(pool, *lengths)
        fit |= {"max_seqs": int(found.mean_footprint), "max_seqs_full_length": int(found.full_length)}
    if max_model_len:
        fit["max_seqs_at_max_model_len"] = round(max_seqs_of_length(pool, max_model_len), 2)
    return fit


def _print_json(pool: KvBudget, config: ServerConfig | None, fit: dict[str, float | None]) -> None:
    from json import dumps

    cell = config.cell.model_dump() if config else {"max_num_seqs": None, "max_num_batched_tokens": None}
    record = pool.model_dump(mode="json") | {"kv_tokens": pool.kv_tokens, "kind": "full"} | cell | fit
    print(dumps(record, indent=2, ensure_ascii=False))


def _print_bytes_per_token(options: ServerOptions, *, as_json: bool) -> int:
    """Without a GPU: what one token takes, which needs nothing but the attention's geometry."""
    from json import dumps

    from maitre.kv_budget import kv_bytes_per_token
    from maitre.models import load_attention

    model = load_attention(options.model or "")
    num_bytes = kv_bytes_per_token(model, options.kv_cache_dtype, options.tensor_parallel_size, options.dtype)
    if as_json:
        record = {"kv_bytes_per_token": num_bytes, "fixed_bytes_per_seq": 0, "kind": "full", "source": model.source}
        print(dumps(record, indent=2, ensure_ascii=False))
        return 0
    print(f"{model.name}: {num_bytes:,} B of KV cache a token and GPU, from {model.source}")
    print("add --gpu to see how many tokens fit")
    return 0


def _print_budget(
    pool: KvBudget,
    config: ServerConfig | None,
    fit: dict[str, float | None],
    lengths: tuple[IntVector, IntVector] | None,
) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    console.print(f"[dim]{escape(pool.source)}[/dim]", soft_wrap=True)
    if pool.parts:
        console.print(_parts_table(pool))
    per_token = f", {pool.kv_bytes_per_token:,} B a token" if pool.kv_bytes_per_token else ""
    console.print(
        f"KV pool: {pool.num_gpu_blocks:,} blocks of {pool.block_size}{per_token}; "
        f"[bold]{pool.kv_tokens:,} tokens[/bold] (one block is vLLM's own)",
        soft_wrap=True,
    )
    for line in _fit_lines(config, fit, lengths):
        console.print(line, soft_wrap=True)


def _print_later_pool(first: KvBudget, later: KvBudget | None) -> None:
    """Say how much larger the pool gets once the compiled graphs are cached, where that is half a per cent or more."""
    if later is not None and (gain := later.kv_tokens / first.kv_tokens - 1) >= 0.005:
        print(f"a later start finds its graphs compiled: {later.kv_tokens:,} tokens, +{gain:.1%} (--compiled)")


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


def _fit_lines(
    config: ServerConfig | None, fit: dict[str, float | None], lengths: tuple[IntVector, IntVector] | None
) -> list[str]:
    """How many sequences fit, in words, and what that means for max_num_seqs."""
    lines = []
    if lengths is not None and fit["max_seqs"] is not None:
        means = f"{lengths[0].mean():,.0f} prompt and {lengths[1].mean():,.0f} output tokens"
        lines.append(f"at {means} (mean): [bold]{fit['max_seqs']:,} sequences[/bold] run at once")
        lines.append(f"  {fit['max_seqs_full_length']:,} if all of them stand at their last token")
    if fit["max_seqs_at_max_model_len"] is not None:
        length = f" of {config.max_model_len:,}" if config else ""
        lines.append(f"  {fit['max_seqs_at_max_model_len']:,} if all of them have max_model_len{length}")
    if config is None or fit["max_seqs"] is None:
        return lines
    cell = f"max_num_seqs {config.max_num_seqs:,} and max_num_batched_tokens {config.max_num_batched_tokens:,}"
    verdict = "more sequences than fit: the pool binds first, and vLLM preempts"
    if config.max_num_seqs <= fit["max_seqs"]:
        verdict = "the pool has room for all of them"
    return [*lines, f"with {cell}: {verdict}"]
