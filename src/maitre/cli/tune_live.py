"""`maitre tune --engine live|restart … -- vllm serve MODEL …`: measure the user's own server."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maitre.cli.grid_options import GridOptions
    from maitre.cli.search_options import SearchOptions
    from maitre.cli.server_options import ServerOptions
    from maitre.cli.workload_options import WorkloadOptions
    from maitre.measuring import OnDecision, OnRun
    from maitre.recording import StepRecord
    from maitre.records import Cell, FailedTrial, ServerConfig, Study, Trial, Workload
    from maitre.study import StudyDirectory
    from maitre.trial.command import ServeCommand
    from maitre.trial.live import LiveEngine
    from maitre.trial.live_options import LiveOptions


RESTART_S = 60.0
"""About what a server's start costs, when the search weighs one run against another."""


def measure(
    workload: WorkloadOptions, options: ServerOptions, grid: GridOptions, search: SearchOptions,
    serve_command: str | None, blocks: int | None, path: Path | None, *, restart: bool, open_loop: bool,
    client_latency: bool = False,
) -> Study:  # fmt: skip
    """Start the server, measure what is needed, and conclude. The same command resumes what was interrupted."""
    from maitre.cli.measured_study import present_setting, question, question_path
    from maitre.cli.progress import measured_progress
    from maitre.cli.simulate import check_open_loop
    from maitre.records import Trial
    from maitre.study import StudyDirectory
    from maitre.trial.command import ServeCommand
    from maitre.trial.live import LiveEngine
    from maitre.trial.live_options import LiveOptions

    command = ServeCommand.parse(shlex.split(serve_command or ""))
    present = present_setting(grid, command.flag, options)
    cells = listed_cells(grid, present)
    traffic = workload.load()
    check_open_loop(traffic, open_loop=open_loop)
    live = LiveOptions(
        restart=restart, open_loop=open_loop, seed=workload.seed, num_gpu_blocks=blocks, client_latency=client_latency
    )
    asked = question(
        traffic, cells, command=str(command), num_gpu_blocks=blocks, restart=restart, open_loop=open_loop,
        client_latency=client_latency, seed=workload.seed,
    )  # fmt: skip
    directory, finished = StudyDirectory.resume(path or question_path(traffic.name, "live", asked), traffic, asked)
    before = tuple(finished)

    def keep(trial: Trial | FailedTrial, steps: StepRecord | None) -> None:
        if isinstance(trial, Trial):
            directory.add_trial(trial, steps)
            finished.append((trial, steps))
        show(trial)

    with (
        directory,
        _recording(directory, traffic, finished, command, options, open_loop=open_loop),
        measured_progress(
            cells, [trial for trial, _ in before], is_search=search.search == "challenge" and not open_loop
        ) as show,
    ):
        with LiveEngine(command, traffic, largest(cells), directory.path, live) as engine:
            server = server_config(engine, command, present, traffic)
            study = _tune(engine, traffic, server, cells, search, live, before, keep, show.decide)
            path = directory.path / f"confirmation-{study.recommended}"
            if study.recommendation.worth_changing and search.confirm == "live":
                study = _confirm(engine, study, path, traffic, asked, show)
        if study.recommendation.worth_changing and search.confirm == "fresh":
            pair = [study.recommended, present]
            with LiveEngine(command, traffic, largest(pair), path, replace(live, restart=True)) as engine:
                study = _confirm(engine, study, path, traffic, asked, show)
    return directory.finish(study)


def _confirm(
    engine: LiveEngine, study: Study, path: Path, traffic: Workload, asked: dict[str, Any],
    show: Callable[[Trial | FailedTrial], None],
) -> Study:  # fmt: skip
    """Run the recommended setting and the present one in turn, in a study directory of their own."""
    from maitre.confirming import confirm
    from maitre.records import Trial
    from maitre.study import StudyDirectory

    directory, finished = StudyDirectory.resume(path, traffic, asked)

    def keep(trial: Trial | FailedTrial, steps: StepRecord | None) -> None:
        if isinstance(trial, Trial):
            directory.add_trial(trial, steps)
        show(trial)

    with directory:
        return confirm(engine, study, [trial for trial, _ in finished], keep)


def _tune(
    engine: LiveEngine, traffic: Workload, server: ServerConfig, cells: Sequence[Cell], search: SearchOptions,
    live: LiveOptions, before: Sequence[tuple[Trial, StepRecord | None]], keep: OnRun, on_decision: OnDecision,
) -> Study:  # fmt: skip
    from maitre.calibration import served_prior
    from maitre.cli.served_pool import ServedPool, flag_factors
    from maitre.records import Cell
    from maitre.simulator.surface import ReplayedSurface
    from maitre.tune import tune_grid, tune_measured

    facts = engine.start(server.cell)
    goal = search.goal(live.seed)
    if search.search == "grid" or live.open_loop:
        trials = [trial for trial, _ in before]
        return tune_grid(
            engine, traffic, server, cells, goal, gpu=facts.gpu, finished=trials, open_loop=live.open_loop, on_run=keep
        )
    prior = served_prior(facts.model_facts, facts.gpu, server)
    pool = ServedPool(facts, server, live.num_gpu_blocks)
    for trial, _ in before:
        pool.learn(trial)

    def learn(trial: Trial | FailedTrial, steps: StepRecord | None) -> None:
        pool.learn(trial)
        keep(trial, steps)

    started_at = Cell(max_num_seqs=facts.start.max_num_seqs, max_num_batched_tokens=facts.start.max_num_batched_tokens)
    surface = ReplayedSurface(
        traffic, server, prior.step_time, pool.num_gpu_blocks, started_at=None if live.restart else started_at,
        factors=flag_factors(facts, server, cells),
    )  # fmt: skip
    return tune_measured(
        engine, surface, prior, server, cells, goal, limits=search.limits(),
        start_s=RESTART_S if live.restart else 0.0, switch_s=RESTART_S, finished=before, on_run=learn,
        on_decision=on_decision,
    )  # fmt: skip


@contextmanager
def _recording(
    directory: StudyDirectory, traffic: Workload, trials: Sequence[tuple[Trial, StepRecord | None]],
    command: ServeCommand, options: ServerOptions, *, open_loop: bool,
) -> Iterator[None]:  # fmt: skip
    """At the end, also an early one: what was measured, as a recording."""
    from maitre.trial.facts import read_facts
    from maitre.trial.live_recording import record_trials, write_recording

    try:
        yield
    finally:
        facts = read_facts(directory.path / "server.json")
        if facts is not None:
            model = command.model or "unknown"
            plain = [(trial, steps) for trial, steps in trials if not trial.flags]  # a recording is of one server
            recorded = record_trials(facts, traffic, plain, model=model, gpu=options.gpu, open_loop=open_loop)
            if recorded is not None:
                write_recording(directory.path / "recording.json", *recorded)


def listed_cells(grid: GridOptions, present: Cell) -> list[Cell]:
    """The present setting and the two lists.

    Raises:
        UsageError: --grid auto, or a wrong value.
    """
    from maitre.errors import UsageError

    if grid.grid == "auto":
        raise UsageError("--grid auto needs a KV pool that is known before the start", "give the lists")
    return [present, *grid.listed_cells()]


def largest(cells: list[Cell]) -> Cell:
    """The largest value of each dial: where a live server starts."""
    from maitre.records import Cell

    return Cell(
        max_num_seqs=max(cell.max_num_seqs for cell in cells),
        max_num_batched_tokens=max(cell.max_num_batched_tokens for cell in cells),
    )


def server_config(engine: LiveEngine, command: ServeCommand, present: Cell, traffic: Workload) -> ServerConfig:
    """What the server says of itself; it is started for that if it never was."""
    from maitre.errors import InputError

    started = engine.start(present)
    longest = int((traffic.prompt_tokens + traffic.output_tokens).max())
    if longest > started.start.max_model_len:
        raise InputError(
            f"the longest request has {longest} tokens, the server's max_model_len is {started.start.max_model_len}",
            "raise --max-model-len, or leave such requests out of the workload",
        )
    return started.config(command.model or "unknown", present)
