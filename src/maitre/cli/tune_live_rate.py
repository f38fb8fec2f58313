"""`maitre tune --engine live|restart --slo … -- vllm serve MODEL …`: the highest rate of the user's own server."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitre.cli.grid_options import GridOptions
    from maitre.cli.search_options import SearchOptions
    from maitre.cli.server_options import ServerOptions
    from maitre.cli.workload_options import WorkloadOptions
    from maitre.measuring import OnRun
    from maitre.recording import StepRecord
    from maitre.records import Cell, FailedTrial, ServerConfig, Study, Trial, Workload
    from maitre.slo import LatencyTarget
    from maitre.trial.live import LiveEngine
    from maitre.trial.live_options import LiveOptions


def measure(
    workload: WorkloadOptions, options: ServerOptions, grid: GridOptions, search: SearchOptions,
    targets: Sequence[LatencyTarget], serve_command: str | None, blocks: int | None, path: Path | None, *,
    restart: bool,
) -> Study:  # fmt: skip
    """Start the server, search, and confirm. The same command resumes what was interrupted."""
    from maitre.cli.measured_study import present_setting, question, question_path
    from maitre.cli.progress import measured_progress
    from maitre.cli.tune_live import largest, listed_cells, server_config
    from maitre.records import Trial
    from maitre.study import StudyDirectory
    from maitre.trial.command import ServeCommand
    from maitre.trial.live import LiveEngine
    from maitre.trial.live_options import LiveOptions

    command = ServeCommand.parse(shlex.split(serve_command or ""))
    present = present_setting(grid, command.flag, options)
    cells = listed_cells(grid, present)
    traffic = workload.load()
    asked = question(
        traffic, cells, command=str(command), targets=[str(target) for target in targets], num_gpu_blocks=blocks,
        restart=restart, seed=workload.seed,
    )  # fmt: skip
    directory, finished = StudyDirectory.resume(path or question_path(traffic.name, "rate", asked), traffic, asked)
    live = LiveOptions(
        restart=restart, open_loop=True, targets=tuple(targets), seed=workload.seed, num_gpu_blocks=blocks
    )
    with (
        directory,
        LiveEngine(command, traffic, largest(cells), directory.path, live) as engine,
        measured_progress(cells, [trial for trial, _ in finished]) as show,
    ):

        def keep(trial: Trial | FailedTrial, steps: StepRecord | None) -> None:
            if isinstance(trial, Trial):
                directory.add_trial(trial, steps)
            show(trial)

        server = server_config(engine, command, present, traffic)
        study = _tune(engine, traffic, server, cells, search, live, finished, keep)
    return directory.finish(study)


def _tune(
    engine: LiveEngine, traffic: Workload, server: ServerConfig, cells: Sequence[Cell], search: SearchOptions,
    live: LiveOptions, finished: Sequence[tuple[Trial, StepRecord | None]], keep: OnRun,
) -> Study:  # fmt: skip
    from maitre.calibration import served_prior
    from maitre.measured_rates import tune_measured_rate
    from maitre.records import Cell
    from maitre.simulator.surface import ReplayedSurface
    from maitre.trial.paced import PacedSurface

    facts = engine.start(server.cell)
    prior = served_prior(facts.model_facts, facts.gpu, server)
    num_gpu_blocks = live.num_gpu_blocks or facts.start.num_gpu_blocks
    start = facts.start
    largest = Cell(max_num_seqs=start.max_num_seqs, max_num_batched_tokens=start.max_num_batched_tokens)
    started_at = None if live.restart else largest
    schedules = ReplayedSurface(traffic, server, prior.step_time, lambda _: num_gpu_blocks, started_at=started_at)
    paced = PacedSurface(
        traffic, server, prior.step_time, lambda _: num_gpu_blocks, seed=live.seed, started_at=started_at
    )
    return tune_measured_rate(
        engine.measure_requests, schedules, paced, prior, server, cells, live.targets, search.goal(live.seed),
        engine=engine.name, limits=search.limits(), finished=finished, on_run=keep,
    )  # fmt: skip
