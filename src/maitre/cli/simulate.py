"""`maitre simulate`: the surface, with no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from maitre.cli.grid_options import CLASSICAL, GridOptions
from maitre.cli.numbers import Count
from maitre.cli.objective_options import THROUGHPUT, ObjectiveOptions, exit_code
from maitre.cli.server_options import DEFAULT_SCHEDULER, NO_SERVER, SchedulerOptions, ServerOptions
from maitre.cli.workload_options import NO_WORKLOAD, WorkloadOptions

if TYPE_CHECKING:
    from maitre.records import Cell, Workload
    from maitre.setup import Setup

MOST_DRAWN_REQUESTS = 65_536
"""However many slots there are; --num-requests can ask for more."""


def simulate(
    workload: WorkloadOptions = NO_WORKLOAD,
    server: ServerOptions = NO_SERVER,
    scheduler: SchedulerOptions = DEFAULT_SCHEDULER,
    grid: GridOptions = CLASSICAL,
    objective: ObjectiveOptions = THROUGHPUT,
    *,
    blocks: Annotated[Count | None, Parameter(name=["--blocks", "--num-gpu-blocks"])] = None,
    open_loop: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Predict the surface: throughput, latency and the binding limit of every cell, with no GPU.

    Parameters
    ----------
    blocks
        The KV pool of every cell, if you know num_gpu_blocks from vLLM's log or metrics; estimated for each cell when
        not given.
    open_loop
        Requests come at the workload's own times; without it all are there at once, which measures capacity.
    json
        Print the study as JSON.
    """
    from maitre.cli.progress import trial_progress
    from maitre.tune import Goal

    objective.targets()  # before anything is loaded
    objective.check_varied(grid.vary)
    traffic, setup, cells = prepare(objective.sized(workload), server, scheduler, grid, blocks)
    check_open_loop(traffic, open_loop=open_loop)
    with trial_progress(len({*cells, setup.server.cell})) as on_trial:
        study = objective.tune(traffic, setup, cells, Goal(seed=workload.seed), open_loop=open_loop, on_trial=on_trial)
    if json:
        print(study.model_dump_json(indent=1))
    else:
        from rich.console import Console

        from maitre.report import print_study

        print_study(study, Console())
    return exit_code(study)


def prepare(
    workload: WorkloadOptions,
    server: ServerOptions,
    scheduler: SchedulerOptions,
    grid: GridOptions,
    num_gpu_blocks: int | None,
) -> tuple[Workload, Setup, list[Cell]]:
    """From options to what `tune_simulated` needs: the traffic, the setup and the grid."""
    from maitre.search.findings import REQUESTS_PER_SLOT
    from maitre.setup import Setup
    from maitre.vllm import check_server

    model, gpu = server.load()
    present = grid.present_cell()
    config = server.server(model, gpu)
    config = scheduler.apply(config.at(present) if present else config)
    check_server(config, model.max_position_embeddings)
    most_slots = max(grid.largest_seqs(), config.max_num_seqs)
    traffic = workload.load(min(max(1000, REQUESTS_PER_SLOT * most_slots), MOST_DRAWN_REQUESTS), config.max_model_len)
    setup = Setup(config, model, gpu, num_gpu_blocks)
    cells = grid.cells(traffic, setup.kv_budget(config.cell).kv_tokens, config.cell)
    return traffic, setup, cells


def check_open_loop(workload: Workload, *, open_loop: bool) -> None:
    """Open loop needs arrival times.

    Raises:
        UsageError: the workload has none.
    """
    from maitre.errors import UsageError

    if open_loop and workload.arrival_s is None:
        raise UsageError(
            f"--open-loop needs arrival times, and {workload.name} has none",
            "name the table's column with --time-column, or leave --open-loop out",
        )
