"""Computed and logged values of one server side by side, what makes the difference, and the pool at other dials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from maitre.records import MemoryPart, Record
from maitre.units import GIB

if TYPE_CHECKING:
    from maitre.cli.server_options import ServerOptions
    from maitre.gpus import Gpu
    from maitre.kv_budget import Extras
    from maitre.models import Checkpoint
    from maitre.records import KvBudget, ServerConfig
    from maitre.vllm.startup_log_record import Startup

ROUNDING_GIB = 0.02
"""vLLM prints GiB to two decimals; of two such figures the difference is known to this."""


class Side(Record):
    """One value, computed and logged."""

    name: str
    computed_gib: float
    logged_gib: float | None
    explains_gib: float | None = None
    """What the difference gives to the pool (negative: takes from it)."""


class Comparison(Record):
    """What was computed for a server, and what it logged. GiB on one GPU."""

    sides: tuple[Side, ...]
    computed_kv_tokens: int | None
    """As vLLM prints them, its own block included; None where it does not fit."""
    logged_kv_tokens: int | None
    """Of one engine."""
    difference_gib: float | None
    """The logged pool minus the computed one."""
    unexplained_gib: float | None
    """What the logged parts leave open of it."""
    explanations: tuple[str, ...]


class PoolAtDials(Record):
    """The KV pool of one engine at one cell, corrected by what was logged."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int | None
    """None where one request of max_model_len does not fit."""
    kv_tokens: int | None
    is_present: bool
    """Whether it is the cell that the server runs at."""


def logged_server(startup: Startup, options: ServerOptions) -> ServerOptions:
    """The flags of the server that wrote the log, those of the command line where the log is silent."""
    return replace(
        options,
        vllm_version=startup.version or options.vllm_version,
        dtype=startup.dtype or options.dtype,
        kv_cache_dtype=startup.kv_cache_dtype or options.kv_cache_dtype,
        tensor_parallel_size=startup.tensor_parallel_size or options.tensor_parallel_size,
        gpu_memory_utilization=startup.gpu_memory_utilization or options.gpu_memory_utilization,
        max_model_len=str(startup.max_model_len) if startup.max_model_len else options.max_model_len,
        block_size=startup.block_size or options.block_size,
    )


def compare(
    startup: Startup, parts: Sequence[MemoryPart], budget: KvBudget | None, gpu: Gpu, share: float
) -> Comparison:
    """Set the two side by side.

    Args:
        startup: what was logged.
        parts: what was computed, the pool last.
        budget: the pool that was computed; None where it does not fit.
        gpu: the GPU that it was computed for.
        share: gpu_memory_utilization.
    """
    sides = tuple(_sides(startup, {part.name: part.num_bytes / GIB for part in parts}, gpu, share))
    pool, logged_bytes = parts[-1].num_bytes / GIB, logged_pool_bytes(startup, budget)
    logged = None if logged_bytes is None else logged_bytes / GIB
    tokens = startup.kv_cache_tokens
    difference = None if logged is None else logged - pool
    known = sum(side.explains_gib for side in sides if side.explains_gib is not None)
    return Comparison(
        sides=(*sides, Side(name="KV pool", computed_gib=pool, logged_gib=logged)),
        computed_kv_tokens=None if budget is None else _tokens_with_null_block(budget),
        logged_kv_tokens=tokens // (startup.engines or 1) if tokens is not None else None,
        difference_gib=difference,
        unexplained_gib=None if difference is None else difference - known,
        explanations=tuple(_explanations(startup, sides, budget, difference, known)),
    )


def _tokens_with_null_block(budget: KvBudget) -> int:
    return budget.kv_tokens * budget.num_gpu_blocks // (budget.num_gpu_blocks - 1)


def logged_pool_bytes(startup: Startup, budget: KvBudget | None) -> int | None:
    """The pool's memory on one GPU: as logged, else that of its blocks; None where something else sets the blocks."""
    from maitre.kv_budget import GroupedKvBudget

    if startup.available_kv_gib is not None:
        return round(startup.available_kv_gib * GIB)
    if budget is None or budget.kv_bytes_per_token is None or startup.num_gpu_blocks_override is not None:
        return None
    engines = startup.engines or 1
    if startup.num_gpu_blocks is not None:
        return startup.num_gpu_blocks // engines * _bytes_per_block(budget)
    tokens = None if isinstance(budget, GroupedKvBudget) else startup.kv_cache_tokens
    return None if tokens is None else tokens // engines * budget.kv_bytes_per_token


def _bytes_per_block(budget: KvBudget) -> int:
    from maitre.kv_budget import GroupedKvBudget

    if isinstance(budget, GroupedKvBudget):
        return budget.layout.bytes_per_block
    return (budget.kv_bytes_per_token or 0) * budget.block_size


def _sides(startup: Startup, computed: dict[str, float], gpu: Gpu, share: float) -> Iterator[Side]:
    asked = gpu.memory_bytes / GIB * share
    logged = startup.device_gib * share if startup.device_gib is not None else None
    yield Side(
        name="memory that vLLM takes", computed_gib=asked, logged_gib=logged,
        explains_gib=None if logged is None else logged - asked,
    )  # fmt: skip
    weights = computed.get("weights", 0.0) + computed.get("rotary table", 0.0)
    others = computed.get("outside PyTorch", 0.0)
    if startup.consumed_gib is not None:
        yield _taken("weights and outside PyTorch", weights + others, startup.consumed_gib)
    else:
        yield _taken("weights", weights, startup.weights_gib)
        yield _taken("outside PyTorch", others, startup.non_torch_gib)
    yield _taken("activation peak", computed.get("activation peak", 0.0), startup.peak_activation_gib)
    if "CUDA graphs" in computed or startup.cuda_graph_gib is not None:
        yield _taken("CUDA graphs", computed.get("CUDA graphs", 0.0), startup.cuda_graph_gib)


def _taken(name: str, computed: float, logged: float | None) -> Side:
    explains = None if logged is None else computed - logged
    return Side(name=name, computed_gib=computed, logged_gib=logged, explains_gib=explains)


def _explanations(
    startup: Startup, sides: Sequence[Side], budget: KvBudget | None, difference: float | None, known: float
) -> Iterator[str]:
    if startup.num_gpu_blocks_override is not None:
        yield f"num_gpu_blocks_override {startup.num_gpu_blocks_override:,} sets the blocks, whatever the memory"
    if startup.kv_cache_memory_bytes is not None:
        yield "kv_cache_memory_bytes sets the pool, so gpu_memory_utilization and the dials do not"
    if difference is not None and abs(difference) <= ROUNDING_GIB:
        yield "computed and logged memory agree to the rounding of the log"
    elif difference is not None and startup.kv_cache_memory_bytes is None:
        for side in sides:
            if side.explains_gib is not None and abs(side.explains_gib) > ROUNDING_GIB:
                more = "more" if side.explains_gib > 0 else "less"
                yield f"{side.name}: logged {side.logged_gib:.2f}, {abs(side.explains_gib):.2f} GiB {more} for the pool"
        if abs(difference - known) > ROUNDING_GIB:
            silent = [side.name for side in sides if side.logged_gib is None]
            cause = f"; the log does not show {', '.join(silent)}" if silent else ""
            yield f"{difference - known:+.2f} GiB are not explained{cause}"
    if startup.enforce_eager and any(side.name == "CUDA graphs" and side.computed_gib for side in sides):
        yield "enforce_eager: no CUDA graphs are captured"
    yield from _rate(startup, budget)


def _rate(startup: Startup, budget: KvBudget | None) -> Iterator[str]:
    """Whether a token costs what was computed, by the two figures of the log."""
    tokens, memory = startup.kv_cache_tokens, startup.available_kv_gib
    if budget is None or not tokens or memory is None or memory <= 0 or startup.num_gpu_blocks_override is not None:
        return
    logged = memory * GIB / (tokens / (startup.engines or 1))
    computed = budget.num_gpu_blocks * _bytes_per_block(budget) / _tokens_with_null_block(budget)
    if abs(logged / computed - 1) > 0.02:
        yield (
            f"the log has {logged:,.0f} B of memory a token, {computed:,.0f} B were computed: "
            "another model or --kv-cache-dtype, or ranks of unequal memory"
        )


def correction_bytes(startup: Startup, parts: Sequence[MemoryPart], budget: KvBudget | None) -> int:
    """What the log adds to the computed pool of one GPU; 0 where it does not show the memory, or a flag sets it."""
    logged = logged_pool_bytes(startup, budget)
    if logged is None or startup.kv_cache_memory_bytes is not None:
        return 0
    return logged - parts[-1].num_bytes


def pool_by_dials(
    model: Checkpoint, gpu: Gpu, server: ServerConfig, correction: int, extras: Extras, *, compiles: bool
) -> tuple[PoolAtDials, ...]:
    """The pool at the classical grid and the present cell; the token budget eats memory that the pool would have.

    Args:
        model: the model.
        gpu: each of the equal GPUs.
        server: the present settings.
        correction: bytes on one GPU, from `correction_bytes`.
        extras: what the server has beside its settings.
        compiles: see `maitre.kv_budget.estimate_kv_budget`.
    """
    from maitre.search.grid import CLASSICAL_SEQS, CLASSICAL_TOKENS

    cells = []
    for seqs in sorted({*CLASSICAL_SEQS, server.max_num_seqs}):
        for tokens in sorted({*CLASSICAL_TOKENS, server.max_num_batched_tokens}):
            if tokens >= seqs:
                there = server.model_copy(update={"max_num_seqs": seqs, "max_num_batched_tokens": tokens})
                blocks, pool = _pool_at(model, gpu, there, correction, extras, compiles=compiles) or (None, None)
                cells.append(
                    PoolAtDials(
                        max_num_seqs=seqs, max_num_batched_tokens=tokens, num_gpu_blocks=blocks, kv_tokens=pool,
                        is_present=there == server,
                    )
                )  # fmt: skip
    return tuple(cells)


def _pool_at(
    model: Checkpoint, gpu: Gpu, server: ServerConfig, correction: int, extras: Extras, *, compiles: bool
) -> tuple[int, int] | None:
    """Blocks and tokens of the pool; None where it does not hold one request of max_model_len."""
    from maitre.kv_budget import cache_flags, kv_layout, max_in_flight_tokens, memory_parts, pool_of

    layout, in_flight = kv_layout(model, cache_flags(server, extras)), max_in_flight_tokens(server)
    pool = memory_parts(model, gpu, server, compiles=compiles, extras=extras)[-1].num_bytes + correction
    blocks, length = pool // layout.bytes_per_block, server.max_model_len
    if blocks < max(2, layout.blocks_reserved(length, in_flight)):
        return None
    return blocks, pool_of(layout, blocks, max_model_len=length, in_flight_tokens=in_flight, source="").kv_tokens
