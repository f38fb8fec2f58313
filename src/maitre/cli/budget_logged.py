"""The pool of a server that was started, as its log or metrics show it: beside what is computed, and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from maitre.cli.budget_compare import Comparison, PoolAtDials
    from maitre.cli.budget_extras import ExtraOptions
    from maitre.cli.budget_fit import Fit, Lengths
    from maitre.cli.server_options import ServerOptions
    from maitre.gpus import Gpu
    from maitre.kv_budget import Extras, KvLayout
    from maitre.models import Checkpoint
    from maitre.records import KvBudget, ServerConfig
    from maitre.vllm.startup_log_record import Startup


class Asked(NamedTuple):
    """What the command line asks beside the log."""

    options: ServerOptions
    lengths: Lengths | None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    compiled: bool = False
    dials: bool = False
    as_json: bool = False
    extra: ExtraOptions | None = None


class Computed(NamedTuple):
    """What --model and --gpu add to a log."""

    comparison: Comparison
    correction: int
    """Bytes on one GPU."""
    cells: tuple[PoolAtDials, ...]


def computed_beside(startup: Startup, asked: Asked) -> tuple[Computed | None, str | None]:
    """The same server computed, where --model and --gpu are given; and a remark where that is doubtful or impossible.

    Raises:
        UsageError: --dials without them, or no such GPU.
        InputError: the model's files are wrong.
    """
    from maitre.cli.budget_compare import compare, correction_bytes, logged_server, pool_by_dials
    from maitre.errors import UnsupportedError, UsageError
    from maitre.kv_budget import memory_parts

    if asked.options.model is None or asked.options.gpu is None:
        if asked.dials or asked.options.gpu is not None:
            raise UsageError("the pool is computed from a model and a GPU", "give both --model and --gpu")
        return None, None
    served = logged_server(startup, asked.options)
    compiles, extras = not (asked.compiled or startup.loads_compiled_graphs), _extras(startup, asked)
    try:
        model, gpu = asked.options.load_checkpoint()
    except UnsupportedError as error:
        return None, f"not computed: {error.args[0]}"
    try:
        server = served.server(
            model, gpu, startup.max_num_seqs or asked.max_num_seqs,
            startup.max_num_batched_tokens or asked.max_num_batched_tokens,
        )  # fmt: skip
        budget, remark = _estimated(model, gpu, server, extras, compiles=compiles)
        parts = memory_parts(model, gpu, server, compiles=compiles, extras=extras)
    except (UnsupportedError, UsageError) as error:
        return None, f"not computed: {error.args[0]}"
    correction = correction_bytes(startup, parts, budget)
    cells = pool_by_dials(model, gpu, server, correction, extras, compiles=compiles) if asked.dials else ()
    comparison = compare(startup, parts, budget, gpu, server.gpu_memory_utilization)
    return Computed(comparison, correction, cells), remark or _version_remark(startup, served)


def _extras(startup: Startup, asked: Asked) -> Extras:
    """What the command line turns on, and what the log says of windows."""
    from maitre.kv_budget import Extras

    found = asked.extra.extras(with_weights=True) if asked.extra is not None else Extras()
    whole = found.disable_hybrid_kv_cache_manager or startup.hybrid_manager_disabled
    return found.model_copy(update={"disable_hybrid_kv_cache_manager": whole})


def _estimated(
    model: Checkpoint, gpu: Gpu, server: ServerConfig, extras: Extras, *, compiles: bool
) -> tuple[KvBudget | None, str | None]:
    from maitre.errors import DoesNotFitError
    from maitre.kv_budget import estimate_kv_budget

    try:
        return estimate_kv_budget(model, gpu, server, compiles=compiles, extras=extras), None
    except DoesNotFitError as error:
        return None, f"computed: {error.args[0]}"


def _version_remark(startup: Startup, served: ServerOptions) -> str | None:
    if startup.version is not None:
        return None
    return f"vLLM's version is not printed: computed for {served.vllm_version} (--vllm-version)"


def pool_of_one_engine(startup: Startup, options: ServerOptions) -> KvBudget | None:
    """The shown pool as a record; None where it is too small to be one, or not shown.

    Only tokens are printed by most versions; they are divided by --block-size where the block size is not shown. Layers
    that keep a window or a state make that wrong; with --model their blocks are counted, or come from the memory.
    """
    from maitre.kv_budget import pool_of
    from maitre.records import KvBudget

    engines, size = startup.engines or 1, startup.block_size or options.block_size
    found = layout_of(startup, options)
    if found is not None and found[0].kind in {"sliding", "hybrid"}:
        layout, longest = found
        length, blocks = startup.max_model_len or longest, _grouped_blocks(startup, layout) // engines
        return pool_of(layout, blocks, max_model_len=length, in_flight_tokens=1, source="") if blocks > 1 else None
    tokens = startup.full_length_tokens if startup.two_lines_disagree else startup.kv_cache_tokens
    blocks = (tokens // size if tokens is not None else startup.num_gpu_blocks or 0) // engines
    rate = found[0].kv_bytes_per_token if found is not None else None
    return KvBudget(kv_bytes_per_token=rate, num_gpu_blocks=blocks, block_size=size, source="") if blocks > 1 else None


def _grouped_blocks(startup: Startup, layout: KvLayout) -> int:
    """Blocks of all engines: as shown, else by the memory, else by the concurrency at the longest length."""
    from maitre.units import GIB

    if startup.num_gpu_blocks is not None:
        return startup.num_gpu_blocks
    if startup.available_kv_gib is not None:
        return int(startup.available_kv_gib * GIB) // layout.bytes_per_block * (startup.engines or 1)
    if startup.max_concurrency is None or startup.max_concurrency_at_len is None:
        return 0
    in_flight = startup.max_num_batched_tokens or 1
    return int(startup.max_concurrency * layout.blocks_reserved(startup.max_concurrency_at_len, in_flight))


def layout_of(startup: Startup, options: ServerOptions) -> tuple[KvLayout, int] | None:
    """How --model lays its cache out under the server's flags, and its longest sequence; None without one."""
    from maitre.cli.budget_compare import logged_server
    from maitre.errors import UnsupportedError
    from maitre.kv_budget import CacheFlags, kv_layout
    from maitre.models import load_attention

    if options.model is None:
        return None
    served = logged_server(startup, options)
    flags = CacheFlags(
        kv_cache_dtype=served.kv_cache_dtype, dtype=served.dtype, block_size=served.block_size,
        tensor_parallel_size=served.tensor_parallel_size,
        disable_hybrid_kv_cache_manager=startup.hybrid_manager_disabled,
    )  # fmt: skip
    try:
        model = load_attention(options.model)
        return kv_layout(model, flags), model.max_position_embeddings
    except UnsupportedError:
        return None


def layout_record(startup: Startup, options: ServerOptions) -> dict[str, Any]:
    """What a token and a sequence take; null without --model."""
    found = layout_of(startup, options)
    if found is None:
        return {"kv_bytes_per_token": None, "fixed_bytes_per_seq": None, "kind": None}
    layout, longest = found
    fixed = layout.fixed_bytes_per_seq(startup.max_model_len or longest)
    return {"kv_bytes_per_token": layout.kv_bytes_per_token, "fixed_bytes_per_seq": fixed, "kind": layout.kind}


def count_logged(startup: Startup, asked: Asked) -> Fit:
    """How many sequences fit, over all engines; of max_model_len as many as the server itself says."""
    from maitre.cli.budget_fit import count_fitting
    from maitre.errors import DoesNotFitError

    length = startup.max_model_len or startup.max_concurrency_at_len or asked.options.model_len()
    pool = pool_of_one_engine(startup, asked.options)
    try:
        fit = count_fitting(pool, asked.lengths, length, startup.engines or 1)
    except DoesNotFitError:  # the longest request is larger than the pool
        fit = count_fitting(pool, None, length, startup.engines or 1) | {"max_seqs": 0, "max_seqs_full_length": 0}
    if startup.max_concurrency is not None and length in {None, startup.max_concurrency_at_len}:
        fit["max_seqs_at_max_model_len"] = startup.max_concurrency
    return fit


def computed_record(computed: Computed | None, remark: str | None) -> dict[str, Any]:
    """The keys that --model and --gpu add to the JSON record."""
    said = {"remark": remark} if remark is not None else {}
    if computed is None:
        return said
    return said | {
        "comparison": computed.comparison.model_dump(mode="json"),
        "correction_bytes": computed.correction,
        "pool_by_dials": [cell.model_dump(mode="json") for cell in computed.cells],
    }


def print_computed(computed: Computed | None, remark: str | None) -> None:
    """Both sides on the terminal."""
    from rich.markup import escape

    from maitre.cli.budget_print import print_comparison, print_dials, print_lines
    from maitre.units import GIB

    if remark is not None:
        print_lines([escape(remark)])
    if computed is not None:
        print_comparison(computed.comparison)
        if computed.cells:
            print_dials(computed.cells, computed.correction / GIB)
