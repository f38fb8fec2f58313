"""Other files and words: model configurations, benchmark results, what maitre stored, options."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cyclopts import CycloptsError
from places import FOLDER, GIVEN, as_file, verb

import examples
from maitre import slo, units
from maitre.bench_results import compare, judge, read_results
from maitre.calibration.calibration import Calibration
from maitre.cli import app, flag_options, grid_options
from maitre.errors import MaitreError
from maitre.models import load_attention, load_checkpoint, load_model
from maitre.recording import load_recording
from maitre.records import Trial
from maitre.study import StudyDirectory
from maitre.trial import attach_dials, facts, run_files
from maitre.trial.command import ServeCommand
from maitre.trial.registry import ServerRegistry
from maitre.vllm import defaults
from maitre.workload import Selection, load_workload

_TRIAL, _RECORDING = examples.record(Trial), examples.recording()
_NOW = datetime(2026, 11, 8, tzinfo=UTC)


def model_config(data: bytes) -> None:
    """A config.json, for the cache alone, for the weights, and as one of a directory with weight files."""
    path = as_file(data, "config.json")
    for load in (load_model, load_checkpoint):
        with suppress(MaitreError):
            load(path).model_dump_json().encode()
    load_attention(path).model_dump_json().encode()


def budget_model(data: bytes) -> None:
    """`maitre budget --model config.json`, for its cache alone and on a GPU."""
    path = as_file(data, "config.json")
    with suppress(MaitreError):
        verb("budget", "--model", path, "--json", "--tensor-parallel-size", "2", *GIVEN)
    verb("budget", "--model", path, "--gpu", "H200", *GIVEN)


def weight_index(data: bytes) -> None:
    """The index of the weight files, and a quantization in a file of its own, beside a good config.json."""
    folder = FOLDER / "model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "model.safetensors.index.json").write_bytes(data)
    with suppress(MaitreError):
        load_checkpoint(str(folder))
    (folder / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 99000000000}}')
    (folder / "hf_quant_config.json").write_bytes(data)
    try:
        load_checkpoint(str(folder)).model_dump_json().encode()
    finally:
        (folder / "hf_quant_config.json").unlink()


_CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 1000,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip


def bench_results(data: bytes) -> None:
    """`maitre import FILE --json`, as a result on its own and as a table."""
    runs, _ = read_results(as_file(data, "mns256_mnbt8192.json"), {"concurrency": 64})
    results = [judge(run) for run in runs[:200]]
    for result in results:
        result.model_dump_json().encode()
    compare(results).model_dump_json().encode()


def import_printed(data: bytes) -> None:
    """`maitre import FILE` for people."""
    verb("import", as_file(data, "mns256_mnbt8192.json"))


def study(data: bytes) -> None:
    """study.json, trials.jsonl and asked.json of a study."""
    folder = FOLDER / "study"
    folder.mkdir(exist_ok=True)
    for name in ("trials.jsonl", "study.json"):
        (folder / name).write_bytes(data)
    (folder / "asked.json").write_text("{}")
    with suppress(MaitreError):
        StudyDirectory(folder).load().model_dump_json().encode()
    (folder / "study.json").unlink()
    with suppress(MaitreError):
        StudyDirectory.resume(folder, None, {})  # type: ignore[arg-type]  # one that exists keeps its workload
    (folder / "asked.json").write_bytes(data)
    StudyDirectory.resume(folder, None, {})  # type: ignore[arg-type]


def steps(data: bytes) -> None:
    """The .npz of a trial's steps, and the one beside a recording."""
    folder = FOLDER / "steps-of-a-study"
    (folder / "steps").mkdir(parents=True, exist_ok=True)
    (folder / "asked.json").write_text("{}")
    (folder / "trials.jsonl").write_bytes(_TRIAL + b"\n")
    (folder / "steps/0001.npz").write_bytes(data)
    with suppress(MaitreError):
        StudyDirectory.resume(folder, None, {})  # type: ignore[arg-type]
    (FOLDER / "recording.json").write_bytes(_RECORDING)
    (FOLDER / "recording.npz").write_bytes(data)
    load_recording(FOLDER / "recording.json")


def recording(data: bytes) -> None:
    """The JSON of a recording beside a good .npz."""
    path = FOLDER / "cells.npz"
    if not path.exists():
        path.write_bytes(examples.npz())
    load_recording(Path(as_file(data, "cells.json")))


def records(data: bytes) -> None:
    """The other files that maitre or its scheduler wrote: calibration, facts, runs, dials, started servers."""
    path = Path(as_file(data, "record.json"))
    path.with_suffix(".steps").write_bytes(data)
    path.with_suffix(".requests").write_bytes(data)
    servers = FOLDER / "registry/servers"
    servers.mkdir(parents=True, exist_ok=True)
    (servers / "one.json").write_bytes(data)
    ServerRegistry(servers.parent, servers).servers()
    for read in (
        facts.read_facts,
        run_files.read_run,
        lambda path: run_files.StepReader(path).read(),
        lambda path: run_files.read_record(attach_dials.DialState, path),
    ):
        with suppress(MaitreError):
            read(path)
    with suppress(ValueError):  # shipped with the package: its own tests read them
        _ = Calibration.model_validate_json(data).relative_sd


def options(data: bytes) -> None:
    """Each line as the value of every option that has a grammar of its own."""
    readers: tuple[Any, ...] = (
        *(units.parse_token_count, units.parse_duration_s, slo.parse_latency_target, grid_options.parse_counts),
        *(grid_options.parse_cell, defaults.parse_version, lambda text: flag_options.parse_flags([text])),
        *(lambda text: Selection(since=text).bounds_ms(_NOW), lambda text: Selection(where=(text,)).filters()),
        lambda text: load_workload(text, num_requests=3) if text.startswith(("fixed", "lognormal")) else None,
        lambda text: ServeCommand.parse(flag_options.unfold_lists(text.split())),
    )
    for line in data.decode(errors="replace").splitlines()[:20]:
        for read in readers:
            with suppress(MaitreError):
                read(line)


def command_line(data: bytes) -> None:
    """A command line, a word a line, parsed and not run."""
    words = data.decode(errors="replace").splitlines()[:40]
    with suppress(CycloptsError), redirect_stdout(io.StringIO()):
        app.parse_args(flag_options.unfold_lists(words), exit_on_error=False, print_error=False)
