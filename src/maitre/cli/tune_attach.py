"""`maitre tune --engine attach:http://host:port`: measure a server that somebody else runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitre.cli.grid_options import GridOptions
    from maitre.cli.search_options import SearchOptions
    from maitre.cli.server_options import ServerOptions
    from maitre.cli.workload_options import WorkloadOptions
    from maitre.measuring import OnRun
    from maitre.recording import StepRecord
    from maitre.records import Cell, FailedTrial, ServerConfig, Study, Trial, Workload
    from maitre.study import StudyDirectory
    from maitre.trial.attach import AttachOptions
    from maitre.trial.attach_dials import AttachDialsEngine
    from maitre.trial.dials import DialState
    from maitre.trial.facts import ServerFacts
    from maitre.trial.probe import Probe

UNKNOWN_GPU = "a GPU that was not named"


def measure(
    workload: WorkloadOptions, options: ServerOptions, grid: GridOptions, search: SearchOptions, url: str,
    dials: Path | None, path: Path | None, *, open_loop: bool, api_key: str | None = None,
) -> Study:  # fmt: skip
    """Measure the server at the cell that it runs at; with its scheduler's directory, at all that are needed.

    Args:
        workload: the traffic.
        options: the GPU, and what else the server does not say.
        grid: the present cell; with `dials` the others.
        search: how sure to be.
        url: where the server answers.
        dials: the directory that maitre's scheduler in the server uses; None if it runs without.
        path: the study's directory.
        open_loop: requests come at the workload's own times.
        api_key: else VLLM_API_KEY or OPENAI_API_KEY.
    """
    from maitre.cli.simulate import check_open_loop
    from maitre.trial.attach import AttachOptions
    from maitre.trial.probe import probe

    key = api_key or os.environ.get("VLLM_API_KEY") or os.environ.get("OPENAI_API_KEY")
    found = probe(url, key)
    traffic = workload.load()
    check_open_loop(traffic, open_loop=open_loop)
    attach = AttachOptions(first_run=int(time.time()), api_key=key, open_loop=open_loop, seed=workload.seed)
    if dials is None:
        return _measure_as_it_is(found, traffic, options, grid, search, path, attach)
    return _measure_cells(found, dials, traffic, options, grid, search, path, attach)


def _measure_as_it_is(
    found: Probe, traffic: Workload, options: ServerOptions, grid: GridOptions, search: SearchOptions,
    path: Path | None, attach: AttachOptions,
) -> Study:  # fmt: skip
    """One cell, measured from outside."""
    from maitre.cli.measured_study import SMALL_VOCABULARY, question, vocabulary
    from maitre.setup import check_lengths
    from maitre.trial.attach import AttachEngine
    from maitre.tune import tune_grid

    cell = _served_cell(found, grid, attach.api_key)
    server = _server_config(found, options, cell, traffic, attach.api_key)
    check_lengths(traffic, server)
    attach = replace(attach, vocab_size=vocabulary(options.model) or SMALL_VOCABULARY)
    asked = question(traffic, [cell], engine=f"attach:{found.base_url}", open_loop=attach.open_loop, seed=attach.seed)
    with _study(traffic, [cell], path, asked) as (directory, before, keep):
        study = tune_grid(
            AttachEngine(found, traffic, cell, attach), traffic, server, [cell], search.goal(attach.seed),
            gpu=options.gpu or UNKNOWN_GPU, finished=[trial for trial, _ in before], open_loop=attach.open_loop,
            on_run=keep,
        )  # fmt: skip
    return directory.finish(study)


def _measure_cells(
    found: Probe, dials: Path, traffic: Workload, options: ServerOptions, grid: GridOptions, search: SearchOptions,
    path: Path | None, attach: AttachOptions,
) -> Study:  # fmt: skip
    """Every cell that is needed: the server runs maitre's scheduler."""
    from maitre.cli.measured_study import SMALL_VOCABULARY, question
    from maitre.setup import check_lengths
    from maitre.trial.attach_dials import AttachDialsEngine, attached_dials, cell_of
    from maitre.trial.facts import ServerFacts

    directory_of_dials, state = attached_dials(dials, found)
    facts = ServerFacts.of(state)
    present = grid.present_cell() or cell_of(state.applied)
    cells = _reachable_cells(grid, present, state)
    server = facts.config(options.model or found.model_names[0], present)
    check_lengths(traffic, server)
    attach = replace(
        attach, vocab_size=facts.vocab_size or SMALL_VOCABULARY, first_run=max(attach.first_run, (state.run or 0) + 1)
    )
    asked = question(traffic, cells, engine=f"attach:{found.base_url}", open_loop=attach.open_loop, seed=attach.seed)
    with (
        _study(traffic, cells, path, asked) as (directory, before, keep),
        AttachDialsEngine(found, directory_of_dials, state, traffic, attach) as engine,
    ):
        study = _tune(engine, facts, traffic, server, cells, search, attach, before, keep)
    return directory.finish(study)


def _tune(
    engine: AttachDialsEngine, facts: ServerFacts, traffic: Workload, server: ServerConfig, cells: Sequence[Cell],
    search: SearchOptions, attach: AttachOptions, before: Sequence[tuple[Trial, StepRecord | None]], keep: OnRun,
) -> Study:  # fmt: skip
    """As for a server that maitre has started itself."""
    from maitre.calibration import served_prior
    from maitre.simulator.surface import ReplayedSurface
    from maitre.trial.attach_dials import cell_of
    from maitre.tune import tune_grid, tune_measured

    goal = search.goal(attach.seed)
    if search.search == "grid" or attach.open_loop:
        trials = [trial for trial, _ in before]
        return tune_grid(
            engine, traffic, server, cells, goal, gpu=facts.gpu, finished=trials, open_loop=attach.open_loop,
            on_run=keep,
        )  # fmt: skip
    prior = served_prior(facts.model_facts, facts.gpu, server)
    num_gpu_blocks = facts.start.num_gpu_blocks
    surface = ReplayedSurface(
        traffic, server, prior.step_time, lambda _: num_gpu_blocks, started_at=cell_of(facts.start)
    )
    return tune_measured(
        engine, surface, prior, server, cells, goal, limits=search.limits(), finished=before, on_run=keep
    )


@contextmanager
def _study(
    traffic: Workload, cells: Sequence[Cell], path: Path | None, asked: dict[str, Any]
) -> Iterator[tuple[StudyDirectory, list[tuple[Trial, StepRecord | None]], OnRun]]:
    """The study's directory, what it has already, and what keeps and shows each further run."""
    from maitre.cli.measured_study import question_path
    from maitre.cli.progress import measured_progress
    from maitre.records import Trial
    from maitre.study import StudyDirectory

    directory, before = StudyDirectory.resume(path or question_path(traffic.name, "attach", asked), traffic, asked)
    with directory, measured_progress(cells, [trial for trial, _ in before]) as show:

        def keep(trial: Trial | FailedTrial, steps: StepRecord | None) -> None:
            if isinstance(trial, Trial):
                directory.add_trial(trial, steps)
            show(trial)

        yield directory, before, keep


def _served_cell(found: Probe, grid: GridOptions, api_key: str | None) -> Cell:
    """The cell that the server runs at."""
    from maitre.errors import UsageError
    from maitre.trial.attach import served_cell

    if grid.max_num_seqs or grid.max_num_batched_tokens or grid.grid == "auto":
        raise UsageError(
            "a server that is attached to is measured at the one cell that it runs at",
            "leave the grid away, or name the directory of its maitre scheduler with --attach-dials",
        )
    cell = grid.present_cell() or served_cell(found.base_url, api_key)
    if cell is None:
        raise UsageError(
            f"{found.base_url} does not say which limits it runs at",
            "add --present SEQSxTOKENS: --max-num-seqs and --max-num-batched-tokens of its command",
        )
    return cell


def _server_config(
    found: Probe, options: ServerOptions, cell: Cell, traffic: Workload, api_key: str | None
) -> ServerConfig:
    """The server as far as it says what it is."""
    from maitre.records import ServerConfig
    from maitre.trial.server_metrics import scrape

    labels = scrape(found.base_url, api_key).cache_config if found.has_metrics else {}
    longest = int((traffic.prompt_tokens + traffic.output_tokens).max())
    said = {
        "block_size": int(labels["block_size"]) if labels.get("block_size", "").isdecimal() else None,
        "kv_cache_dtype": labels.get("cache_dtype"),
        "gpu_memory_utilization": labels.get("gpu_memory_utilization"),
        "enable_prefix_caching": labels.get("enable_prefix_caching"),
        "vllm_version": found.version,
    }
    given = {name: value for name, value in said.items() if value is not None}
    return ServerConfig.model_validate(
        {
            "model": options.model or found.model_names[0],
            "max_model_len": found.max_model_len or options.model_len() or longest,
            **cell.model_dump(),
            **given,
        }
    )


def _reachable_cells(grid: GridOptions, present: Cell, state: DialState) -> list[Cell]:
    """The grid as far as the server's start allows; what the user has listed must be within it."""
    from maitre.errors import UsageError
    from maitre.trial.attach_dials import cell_of, cells_above

    if grid.grid == "auto":
        raise UsageError("--grid auto does not know the server's start", "give the lists")
    cells = [present, cell_of(state.start), *grid.listed_cells()]
    above = cells_above(cells, state)
    if above and (present in above or grid.max_num_seqs or grid.max_num_batched_tokens):
        raise UsageError(
            f"the server was started at {cell_of(state.start)}; its dials do not go up to {', '.join(map(str, above))}",
            "name smaller values with --max-num-seqs and --max-num-batched-tokens, or start the server larger",
        )
    return [cell for cell in cells if cell not in above]
