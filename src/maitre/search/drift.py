"""Which of the equally good cells keeps most when the traffic or the memory is not what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from maitre.errors import DoesNotFitError
from maitre.records import Cell, DriftLoss, ServerConfig, Workload
from maitre.simulator.step_time import StepTime
from maitre.simulator.surface import Factors, ReplayedSurface, no_factors

LONGER_PROMPTS, MORE_REQUESTS, SMALLER_POOL = 1.3, 1.5, 0.9
SAME_LOSS = 0.005
"""Worst losses closer than this count as equal."""

NumBlocks = Callable[[Cell], int]


def drift_losses(
    workload: Workload, server: ServerConfig, step_time: StepTime, num_gpu_blocks: NumBlocks,
    cells: Sequence[Cell], plateau: Sequence[Cell], factors: Factors = no_factors,
) -> list[DriftLoss]:  # fmt: skip
    """What each cell of the plateau loses against the best cell of the grid after each change.

    Prompts 30 % longer (as far as max_model_len lets them), half as many requests again, a KV pool 10 % smaller.

    Args:
        workload: the traffic, all there at once.
        server: its scheduler's settings.
        step_time: how long steps take.
        num_gpu_blocks: the KV pool at a cell.
        cells: the grid.
        plateau: the cells that are equally good today, all of them on the grid.
        factors: by what the coefficients of the step time are multiplied at a cell with other flags.
    """
    losses: dict[Cell, dict[str, float]] = {cell: {} for cell in plateau}
    for name, changed, pool in _changes(workload, server, num_gpu_blocks):
        surface = ReplayedSurface(changed, server, step_time, pool, factors=factors)
        seconds = {cell: _seconds(surface, cell) for cell in dict.fromkeys([*cells, *plateau])}
        best = min(seconds.values())
        for cell, of_cell in losses.items():
            of_cell[name] = 1 - best / seconds[cell] if np.isfinite(best) else 1.0
    return [
        DriftLoss(**cell.model_dump(), by_change=of_cell, worst=max(of_cell.values()))
        for cell, of_cell in losses.items()
    ]


def most_robust(losses: Sequence[DriftLoss]) -> list[Cell]:
    """The cells that lose least at worst."""
    least = min(loss.worst for loss in losses)
    return [loss.cell for loss in losses if loss.worst <= least + SAME_LOSS]


def _changes(
    workload: Workload, server: ServerConfig, num_gpu_blocks: NumBlocks
) -> Iterator[tuple[str, Workload, NumBlocks]]:
    yield "longer prompts", _longer(workload, server.max_model_len), num_gpu_blocks
    yield "more requests", _more(workload), num_gpu_blocks
    yield "smaller pool", workload, lambda cell: max(2, round(num_gpu_blocks(cell) * SMALLER_POOL))


def _longer(workload: Workload, max_model_len: int) -> Workload:
    room = np.maximum(max_model_len - workload.output_tokens, workload.prompt_tokens)
    prompts = np.minimum(np.ceil(workload.prompt_tokens * LONGER_PROMPTS).astype(np.int64), room)
    hashes = workload.prefix_hashes
    if hashes is not None and workload.prefix_block_tokens is not None:
        fresh = max((h for chunks in hashes for h in chunks), default=0) + 1
        grown = []
        for chunks, tokens in zip(hashes, prompts.tolist(), strict=True):
            num_new = max(0, -(-tokens // workload.prefix_block_tokens) - len(chunks))
            grown.append((*chunks, *range(fresh, fresh + num_new)))
            fresh += num_new
        hashes = tuple(grown)
    return _copy(workload, prompts, workload.output_tokens, hashes)


def _more(workload: Workload) -> Workload:
    """The requests again from the start, until there are half as many more; prefixes are shared as before."""
    take = np.arange(round(workload.num_requests * MORE_REQUESTS)) % workload.num_requests
    hashes = workload.prefix_hashes
    more = None if hashes is None else tuple(hashes[i] for i in take)
    return _copy(workload, workload.prompt_tokens[take], workload.output_tokens[take], more)


def _copy(workload: Workload, prompts: object, outputs: object, hashes: object) -> Workload:
    return Workload.model_validate(
        {
            "name": workload.name,
            "source": workload.source,
            "prompt_tokens": prompts,
            "output_tokens": outputs,
            "prefix_hashes": hashes,
            "prefix_block_tokens": workload.prefix_block_tokens,
        }
    )


def _seconds(surface: ReplayedSurface, cell: Cell) -> float:
    """Of the whole run; infinite where a request does not fit the pool."""
    try:
        return float(surface.replay(cell).steps_s(surface.step_time(cell)).sum() / surface.workload.total_tokens)
    except DoesNotFitError:
        return float("inf")
