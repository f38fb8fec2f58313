"""`maitre tune`: the two flags, with reasons, in a stored study."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from maitre.cli.grid_options import CLASSICAL, GridOptions
from maitre.cli.numbers import Count
from maitre.cli.objective_options import THROUGHPUT, ObjectiveOptions, exit_code
from maitre.cli.search_options import DEFAULT_SEARCH, SearchOptions
from maitre.cli.server_options import DEFAULT_SCHEDULER, NO_SERVER, SchedulerOptions, ServerOptions
from maitre.cli.workload_options import NO_WORKLOAD, WorkloadOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitre.recording import StepRecord
    from maitre.records import Cell, FailedTrial, ServerConfig, Study, Trial
    from maitre.trial import RecordedEngine


TAKES: dict[str, frozenset[str]] = {
    "simulated": frozenset({"blocks", "open_loop", "vary"}),
    "recorded": frozenset(),
    "live": frozenset({"serve_command", "blocks", "open_loop", "client_latency", "vary"}),
    "restart": frozenset({"serve_command", "blocks", "open_loop", "client_latency", "vary"}),
    "vllm-bench": frozenset({"serve_command"}),
    "attach": frozenset({"open_loop", "attach_dials", "api_key"}),
}
"""What each engine takes of the options that not every one takes."""


def tune(
    workload: WorkloadOptions = NO_WORKLOAD,
    server: ServerOptions = NO_SERVER,
    scheduler: SchedulerOptions = DEFAULT_SCHEDULER,
    grid: GridOptions = CLASSICAL,
    search: SearchOptions = DEFAULT_SEARCH,
    objective: ObjectiveOptions = THROUGHPUT,
    *,
    engine: str = "simulated",
    blocks: Annotated[Count | None, Parameter(name=["--blocks", "--num-gpu-blocks"])] = None,
    open_loop: Annotated[bool, Parameter(negative="")] = False,
    client_latency: Annotated[bool, Parameter(negative="")] = False,
    attach_dials: Path | None = None,
    api_key: str | None = None,
    study: Path | None = None,
    serve_command: Annotated[str | None, Parameter(show=False)] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Find the two flags, and save the study.

    Parameters
    ----------
    engine
        Who runs the cells: simulated; live, one real server whose dials are turned; restart, a fresh start for each
        cell; vllm-bench, vLLM's own benchmark; attach:URL, a server that is up; or recorded:FILE.json for a recording.
        Behind live, restart and vllm-bench comes -- and the command that starts your server: maitre tune WORKLOAD
        --engine live -- vllm serve MODEL …
    blocks
        The KV pool of every cell, if you know num_gpu_blocks from vLLM's log or metrics; estimated for each cell when
        not given.
    open_loop
        Requests come at the workload's own times; without it all are there at once, which measures capacity.
    client_latency
        Have a live server stream, and note the latencies that the client sees beside the server's own.
    attach_dials
        Directory that maitre's scheduler in an attached server uses; its dials are then turned, and not without.
    api_key
        Of an attached server; VLLM_API_KEY or OPENAI_API_KEY of the environment when not given.
    study
        Directory for the study; a new one below maitre-studies/ when not given.
    json
        Print the recommendation as JSON.
    """
    kind, _, place = engine.partition(":")
    _check_options(
        kind, serve_command=serve_command, blocks=blocks, open_loop=open_loop, scheduler=scheduler,
        attach_dials=attach_dials, api_key=api_key, client_latency=client_latency, vary=grid.vary,
    )  # fmt: skip
    objective.check_engine(kind)
    objective.check_varied(grid.vary)
    match kind:
        case "simulated":
            finished = _tune_simulated(
                workload, server, scheduler, grid, search, objective, blocks, study, open_loop=open_loop
            )
        case "recorded":
            if (replace(workload, seed=0), server) != (NO_WORKLOAD, NO_SERVER):
                print("maitre: a recording has its own workload, model and GPU; yours are not used", file=sys.stderr)
            finished = _tune_recorded(grid, search, Path(place), study, workload.seed)
        case "live" | "restart" if objective.kind == "rate":
            from maitre.cli import tune_live_rate

            finished = tune_live_rate.measure(
                objective.sized(workload), server, grid, search, objective.targets(), serve_command, blocks, study,
                restart=kind == "restart",
            )  # fmt: skip
        case "live" | "restart":
            from maitre.cli import tune_live

            finished = tune_live.measure(
                workload, server, grid, search, serve_command, blocks, study,
                restart=kind == "restart", open_loop=open_loop, client_latency=client_latency,
            )  # fmt: skip
        case "vllm-bench":
            from maitre.cli import tune_bench

            finished = tune_bench.measure(workload, server, grid, search, serve_command, study)
        case _:
            from maitre.cli import tune_attach

            finished = tune_attach.measure(
                workload, server, grid, search, place, attach_dials, study, open_loop=open_loop, api_key=api_key
            )
    _print(finished, as_json=json)
    return exit_code(finished)


def _check_options(kind: str, *, scheduler: SchedulerOptions, **given: object) -> None:
    """Refuse what an engine does not take.

    Raises:
        UsageError: naming the options.
    """
    from maitre.errors import UsageError

    if kind not in TAKES:
        raise UsageError(
            f"engine '{kind}' is not known",
            "choose simulated, live, restart, vllm-bench, attach:URL or recorded:FILE.json",
        )
    if given["serve_command"] is not None and "serve_command" not in TAKES[kind]:
        raise UsageError("a command behind -- starts a real server", "add --engine live, or leave the command out")
    if kind != "simulated" and scheduler != DEFAULT_SCHEDULER:
        raise UsageError(f"the engine {kind} has its own scheduler flags", "leave these options out")
    unused = [name for name, value in given.items() if value not in (None, False, ()) and name not in TAKES[kind]]
    if unused:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        raise UsageError(f"the engine {kind} does not take {names}", f"leave out {names}")


def _tune_simulated(
    workload: WorkloadOptions, server: ServerOptions, scheduler: SchedulerOptions, grid: GridOptions,
    search: SearchOptions, objective: ObjectiveOptions, num_gpu_blocks: int | None, path: Path | None, *,
    open_loop: bool,
) -> Study:  # fmt: skip
    from maitre.cli.progress import trial_progress
    from maitre.cli.simulate import check_open_loop, prepare
    from maitre.study import StudyDirectory

    objective.targets()  # before anything is loaded
    traffic, setup, cells = prepare(objective.sized(workload), server, scheduler, grid, num_gpu_blocks)
    check_open_loop(traffic, open_loop=open_loop)
    directory = StudyDirectory.create(path or _fresh_path(traffic.name), traffic)
    with directory, trial_progress(len({*cells, setup.server.cell})) as show:

        def keep(trial: Trial) -> None:
            directory.add_trial(trial)
            show(trial)

        goal = search.goal(workload.seed)
        finished = objective.tune(traffic, setup, cells, goal, open_loop=open_loop, on_trial=keep)
    return directory.finish(finished)


def _tune_recorded(grid: GridOptions, search: SearchOptions, recording: Path, path: Path | None, seed: int) -> Study:
    from maitre.records import Trial
    from maitre.simulator.surface import ReplayedSurface
    from maitre.study import StudyDirectory
    from maitre.trial import RecordedEngine
    from maitre.trial.recorded import recorded_server
    from maitre.trial.replay_check import recorded_prior
    from maitre.tune import tune_grid, tune_measured

    engine = RecordedEngine(recording)
    server = _recorded_server(engine, grid.present_cell())
    cells = _recorded_cells(engine, grid)
    with StudyDirectory.create(path or _fresh_path(engine.workload.name), engine.workload) as directory:

        def keep(trial: Trial | FailedTrial, _: StepRecord | None) -> None:
            if isinstance(trial, Trial):
                directory.add_trial(trial)

        goal, gpu = search.goal(seed), engine.recording.gpu
        if search.search == "grid":
            finished = tune_grid(engine, engine.workload, server, cells, goal, gpu=gpu, on_run=keep)
        else:
            prior, started_at = recorded_prior(engine.recording), recorded_server(engine.recording).cell
            num_gpu_blocks = engine.recording.num_gpu_blocks
            surface = ReplayedSurface(
                engine.workload, server, prior.step_time, lambda _: num_gpu_blocks, started_at=started_at
            )
            finished = tune_measured(engine, surface, prior, server, cells, goal, limits=search.limits(), on_run=keep)
    return directory.finish(finished)


def _recorded_cells(engine: RecordedEngine, grid: GridOptions) -> Sequence[Cell]:
    """All recorded cells, or those of the lists."""
    from maitre.cli.grid_options import parse_counts
    from maitre.errors import UsageError

    if grid.grid == "auto":
        raise UsageError("a recording has a fixed grid", "leave --grid auto out")
    seqs = parse_counts(grid.max_num_seqs) if grid.max_num_seqs is not None else None
    tokens = parse_counts(grid.max_num_batched_tokens) if grid.max_num_batched_tokens is not None else None
    cells = [
        cell
        for cell in engine.cells
        if (seqs is None or cell.max_num_seqs in seqs) and (tokens is None or cell.max_num_batched_tokens in tokens)
    ]
    if not cells:
        raise UsageError("no recorded cell is on this grid", f"recorded are {', '.join(map(str, engine.cells))}")
    return cells


def _recorded_server(engine: RecordedEngine, present: Cell | None) -> ServerConfig:
    """The recorded server; the present cell, if not given, is the recorded one nearest to vLLM's default."""
    from maitre.errors import UsageError
    from maitre.trial.recorded import nearest_default, recorded_server

    try:
        cell = present or nearest_default(engine.recording, engine.cells)
    except UsageError as error:
        what = f"the present setting is not known: {error.args[0]}, on which vLLM's default depends"
        raise UsageError(what, f"add --present with one of {', '.join(map(str, engine.cells))}") from None
    if cell not in engine.cells:
        raise UsageError(f"{cell} was not recorded", f"recorded are {', '.join(map(str, engine.cells))}")
    return recorded_server(engine.recording).at(cell)


def _fresh_path(workload_name: str) -> Path:
    from datetime import datetime

    from maitre.study import new_study_path

    first = path = new_study_path(workload_name, datetime.now().astimezone())
    number = 1
    while path.exists():  # another study of this second
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def _print(study: Study, *, as_json: bool) -> None:
    if as_json:
        print(study.recommendation.model_dump_json(indent=1))
        return
    from rich.console import Console

    from maitre.report import print_study

    console = Console()
    print_study(study, console)
    console.print(f"study saved in {study.recommendation.study}", soft_wrap=True, highlight=False)
