"""`maitre budget`: know the KV cache, before a server is started or from what it has printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from maitre.cli.budget_extras import NO_EXTRA_OPTIONS, ExtraOptions
from maitre.cli.numbers import Count
from maitre.cli.server_options import NO_SERVER, ServerOptions
from maitre.cli.workload_options import NO_WORKLOAD, WorkloadOptions

if TYPE_CHECKING:
    from maitre.cli.budget_compare import PoolAtDials
    from maitre.cli.budget_fit import Fit
    from maitre.cli.budget_logged import Asked
    from maitre.kv_budget import CacheFlags
    from maitre.records import KvBudget, ServerConfig


def budget(
    workload: WorkloadOptions = NO_WORKLOAD,
    server: ServerOptions = NO_SERVER,
    extra: ExtraOptions = NO_EXTRA_OPTIONS,
    *,
    log: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    metrics: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    max_num_seqs: Count | None = None,
    max_num_batched_tokens: str | None = None,
    blocks: Count | None = None,
    compiled: Annotated[bool, Parameter(negative="")] = False,
    dials: Annotated[bool, Parameter(negative="")] = False,
    prompt_tokens: Count | None = None,
    output_tokens: Count | None = None,
    in_flight_tokens: Count | None = None,
    api_key: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Know the KV cache: what fills the GPU's memory, and how many sequences really fit.

    From --model and --gpu before a server is started, or from --log or --metrics of one that was; with both, computed
    and logged values stand side by side. Exit code 1: the log's last start failed, or the pool is not shown.

    Parameters
    ----------
    log
        The server's start-up log of any vLLM version, also .gz; - is stdin.
    metrics
        A scrape of /metrics, - for stdin, or the server's address such as http://localhost:8000.
    max_num_seqs
        Most sequences that run at once; vLLM's default for the GPU when not given.
    max_num_batched_tokens
        Token budget of one step, such as 8192 or 8K; vLLM's default for the GPU when not given.
    blocks
        The pool of a running server instead of --gpu: num_gpu_blocks from vLLM's log or metrics.
    compiled
        vLLM finds its compiled graphs in the cache, as every later start of the same shape does: a larger pool.
    dials
        Also the pool at other values of both flags.
    prompt_tokens
        Prompt length to count sequences at, instead of a workload.
    output_tokens
        Output length to count sequences at, instead of a workload.
    in_flight_tokens
        Without --gpu: tokens that one sequence may have scheduled at once; 1 while it decodes, when not given.
    api_key
        For --metrics with an address; else VLLM_API_KEY or OPENAI_API_KEY.
    json
        Print the budget as JSON.
    """
    if log is not None or metrics is not None:
        asked = _asked(workload, server, max_num_seqs, max_num_batched_tokens, prompt_tokens, output_tokens)
        asked = asked._replace(compiled=compiled, dials=dials, as_json=json, extra=extra)
        return _show_logged(log, metrics, api_key, asked, has_blocks=blocks is not None)
    if server.model is not None and server.gpu is None and blocks is None:
        return _print_bytes_per_token(server, extra, in_flight_tokens or 1, as_json=json)
    return _show_computed(
        _asked(workload, server, max_num_seqs, max_num_batched_tokens, prompt_tokens, output_tokens)._replace(
            compiled=compiled, dials=dials, as_json=json
        ),
        blocks,
        extra,
        in_flight_tokens or 1,
    )


def _asked(
    workload: WorkloadOptions,
    server: ServerOptions,
    max_num_seqs: int | None,
    max_num_batched_tokens: str | None,
    prompt_tokens: int | None,
    output_tokens: int | None,
) -> Asked:
    from maitre.cli.budget_fit import given_lengths
    from maitre.cli.budget_logged import Asked
    from maitre.units import parse_token_count

    return Asked(
        server,
        given_lengths(workload, prompt_tokens, output_tokens),
        max_num_seqs,
        parse_token_count(max_num_batched_tokens) if max_num_batched_tokens is not None else None,
    )


def _show_logged(log: str | None, metrics: str | None, api_key: str | None, asked: Asked, *, has_blocks: bool) -> int:
    from maitre.cli.budget_log import show_log
    from maitre.cli.budget_metrics import show_metrics
    from maitre.errors import UsageError

    if has_blocks or (log is not None and metrics is not None):
        raise UsageError("--log, --metrics and --blocks each give the pool", "leave all but one of them out")
    if log is not None:
        return show_log(log, asked)
    return show_metrics(metrics or "", api_key, asked)


def _show_computed(asked: Asked, blocks: int | None, extra: ExtraOptions, in_flight_tokens: int) -> int:
    """The pool that --blocks names or --model and --gpu give."""
    from maitre.cli.budget_fit import count_fitting, fit_lines
    from maitre.cli.budget_print import print_dials, print_lines, print_pool

    later: KvBudget | None = None
    config: ServerConfig | None = None
    cells: tuple[PoolAtDials, ...] = ()
    if blocks is not None:
        pool = _given_pool(asked, blocks, extra, in_flight_tokens)
    else:
        pool, later, config = _estimated_pool(asked, extra)
        cells = _dials(asked, config, extra) if asked.dials else ()
    fit = count_fitting(pool, asked.lengths, config.max_model_len if config else asked.options.model_len())
    if asked.as_json:
        _print_json(pool, config, fit, cells)
        return 0
    print_pool(pool)
    print_lines(fit_lines(config, fit, asked.lengths))
    _print_later_pool(pool, later)
    if cells:
        print_dials(cells, None)
    return 0


def _given_pool(asked: Asked, blocks: int, extra: ExtraOptions, in_flight_tokens: int) -> KvBudget:
    """The pool that --blocks names."""
    from maitre.errors import UsageError
    from maitre.kv_budget import kv_budget_from_blocks
    from maitre.models import load_attention

    options = asked.options
    if options.gpu is not None or asked.dials:
        raise UsageError("--blocks gives the pool, --gpu would compute it", "leave one of them out")
    return kv_budget_from_blocks(
        blocks,
        options.block_size,
        load_attention(options.model) if options.model is not None else None,
        flags=_cache_flags(options, extra),
        max_model_len=options.model_len(),
        in_flight_tokens=in_flight_tokens,
    )


def _cache_flags(options: ServerOptions, extra: ExtraOptions) -> CacheFlags:
    from maitre.kv_budget import CacheFlags

    extras = extra.extras(with_weights=False)
    return CacheFlags(
        kv_cache_dtype=options.kv_cache_dtype,
        dtype=options.dtype,
        tensor_parallel_size=options.tensor_parallel_size,
        block_size=options.block_size,
        disable_hybrid_kv_cache_manager=extras.disable_hybrid_kv_cache_manager,
        speculation=extras.speculation,
    )


def _estimated_pool(asked: Asked, extra: ExtraOptions) -> tuple[KvBudget, KvBudget | None, ServerConfig]:
    """The pool of the server that the flags start, that of a later start where it differs, and the server."""
    from maitre.errors import UsageError
    from maitre.kv_budget import estimate_kv_budget

    if asked.options.model is None:
        raise UsageError("no model is given", "--model NAME_OR_DIRECTORY --gpu GPU, --log FILE, or --blocks N")
    model, gpu = asked.options.load_checkpoint()
    config = asked.options.server(model, gpu, asked.max_num_seqs, asked.max_num_batched_tokens)
    extras = extra.extras(with_weights=True)
    later = estimate_kv_budget(model, gpu, config, compiles=False, extras=extras)
    if asked.compiled:
        return later, None, config
    return estimate_kv_budget(model, gpu, config, extras=extras), later, config


def _dials(asked: Asked, config: ServerConfig, extra: ExtraOptions) -> tuple[PoolAtDials, ...]:
    from maitre.cli.budget_compare import pool_by_dials

    model, gpu = asked.options.load_checkpoint()
    extras = extra.extras(with_weights=True)
    return pool_by_dials(model, gpu, config, 0, extras, compiles=not asked.compiled)


def _print_json(pool: KvBudget, config: ServerConfig | None, fit: Fit, cells: tuple[PoolAtDials, ...]) -> None:
    from json import dumps

    cell = {key: getattr(config, key, None) for key in ("max_num_seqs", "max_num_batched_tokens")}
    record = pool.model_dump(mode="json") | {"kv_tokens": pool.kv_tokens, "kind": _kind(pool)} | cell | fit
    if cells:
        record["pool_by_dials"] = [found.model_dump(mode="json") for found in cells]
    print(dumps(record, indent=2, ensure_ascii=False))


def _kind(pool: KvBudget) -> str:
    from maitre.kv_budget import GroupedKvBudget

    return pool.layout.kind if isinstance(pool, GroupedKvBudget) else "full"


def _print_bytes_per_token(options: ServerOptions, extra: ExtraOptions, in_flight_tokens: int, *, as_json: bool) -> int:
    """Without a GPU: what a token and a sequence take, which needs nothing but the attention's geometry."""
    from json import dumps

    from maitre.kv_budget import kv_layout
    from maitre.models import load_attention

    model, flags = load_attention(options.model or ""), _cache_flags(options, extra)
    layout = kv_layout(model, flags)
    fixed = layout.fixed_bytes_per_seq(options.model_len() or model.max_position_embeddings, in_flight_tokens)
    per_token = layout.kv_bytes_per_token
    if as_json:
        record = {"kv_bytes_per_token": per_token, "fixed_bytes_per_seq": fixed, "kind": layout.kind}
        print(dumps(record | {"source": model.source}, indent=2, ensure_ascii=False))
        return 0
    print(f"{model.name}: {per_token:,} B of KV cache a token and GPU, from {model.source}")
    if fixed:
        print(f"and {fixed:,} B a sequence whatever its length: layers that keep a window or a state")
    if layout.kind == "sliding" and not flags.disable_hybrid_kv_cache_manager:
        whole = kv_layout(model, flags.model_copy(update={"disable_hybrid_kv_cache_manager": True}))
        print(f"{whole.kv_bytes_per_token:,} B a token with --disable-hybrid-kv-cache-manager, and nothing else")
    print("add --gpu to see how many tokens fit")
    return 0


def _print_later_pool(first: KvBudget, later: KvBudget | None) -> None:
    """Say how much larger the pool gets once the compiled graphs are cached, where that is half a per cent or more."""
    if later is not None and (gain := later.kv_tokens / first.kv_tokens - 1) >= 0.005:
        print(f"a later start finds its graphs compiled: {later.kv_tokens:,} tokens, +{gain:.1%} (--compiled)")
