"""`maitre tune --engine vllm-bench … -- vllm serve MODEL …`: measure with vLLM's own throughput benchmark."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitre.cli.grid_options import GridOptions
    from maitre.cli.search_options import SearchOptions
    from maitre.cli.server_options import ServerOptions
    from maitre.cli.workload_options import WorkloadOptions
    from maitre.recording import StepRecord
    from maitre.records import Cell, FailedTrial, ServerConfig, Study, Trial, Workload
    from maitre.trial.bench_command import BenchCommand
    from maitre.trial.vllm_bench import VllmBenchEngine


def measure(
    workload: WorkloadOptions, options: ServerOptions, grid: GridOptions, search: SearchOptions,
    serve_command: str | None, path: Path | None,
) -> Study:  # fmt: skip
    """Run the benchmark at every cell, and conclude. The same command resumes what was interrupted."""
    from maitre.cli.measured_study import SMALL_VOCABULARY, present_setting, question, question_path, vocabulary
    from maitre.cli.progress import measured_progress
    from maitre.records import Trial
    from maitre.setup import check_lengths
    from maitre.study import StudyDirectory
    from maitre.trial.bench_command import BenchCommand
    from maitre.trial.vllm_bench import BenchOptions, VllmBenchEngine
    from maitre.tune import tune_grid

    command = BenchCommand.parse(shlex.split(serve_command or ""))
    present = present_setting(grid, command.flag, options)
    cells = _cells(grid, present)
    traffic = workload.load()
    server = _server_config(command, options, present, traffic)
    check_lengths(traffic, server)
    asked = question(traffic, cells, engine="vllm-bench", command=str(command), seed=workload.seed)
    directory, finished = StudyDirectory.resume(path or question_path(traffic.name, "bench", asked), traffic, asked)
    vocab_size = vocabulary(options.model) or vocabulary(command.model)
    bench = BenchOptions(seed=workload.seed, vocab_size=vocab_size or SMALL_VOCABULARY)
    before = [trial for trial, _ in finished]
    with (
        directory,
        VllmBenchEngine(command, traffic, directory.path, bench) as engine,
        measured_progress(cells, before) as show,
    ):

        def keep(trial: Trial | FailedTrial, steps: StepRecord | None) -> None:
            if isinstance(trial, Trial):
                directory.add_trial(trial, steps)
            show(trial)

        for note in engine.dataset.notes:
            print(f"maitre: {note}", file=sys.stderr)
        study = tune_grid(
            engine, traffic, server, cells, search.goal(workload.seed), gpu=options.gpu or "a GPU that was not named",
            finished=before, on_run=keep,
        )  # fmt: skip
        study = _with_facts(study, engine)
    return directory.finish(study)


def _cells(grid: GridOptions, present: Cell) -> list[Cell]:
    from maitre.errors import UsageError

    if grid.grid == "auto":
        raise UsageError("--grid auto needs a KV pool that is known before the start", "give the lists")
    return [present, *grid.listed_cells()]


def _server_config(command: BenchCommand, options: ServerOptions, present: Cell, traffic: Workload) -> ServerConfig:
    """The server as far as the command says it; `max_model_len` else as long as the longest request."""
    from maitre.records import ServerConfig
    from maitre.units import parse_token_count
    from maitre.vllm import default_gpu_memory_utilization

    flag = command.flag("--max-model-len")
    named = parse_token_count(flag) if flag and flag not in {"auto", "-1"} else options.model_len()
    longest = int((traffic.prompt_tokens + traffic.output_tokens).max())
    utilization = command.flag("--gpu-memory-utilization")
    return ServerConfig(
        model=command.model,
        vllm_version=options.vllm_version,
        dtype=command.flag("--dtype") or "auto",
        kv_cache_dtype=command.flag("--kv-cache-dtype") or "auto",
        tensor_parallel_size=int(command.flag("--tensor-parallel-size") or command.flag("-tp") or 1),
        gpu_memory_utilization=float(utilization or default_gpu_memory_utilization(options.vllm_version)),
        max_model_len=named or longest,
        **present.model_dump(),
    )


def _with_facts(study: Study, engine: VllmBenchEngine) -> Study:
    """The study with the version and length that the engine named in its log."""
    facts = engine.facts()
    if facts is None:
        return study
    server = study.server.model_copy(update=facts._asdict())
    return study.model_copy(update={"server": server, "calibration": f"measured with vLLM {facts.vllm_version}"})
