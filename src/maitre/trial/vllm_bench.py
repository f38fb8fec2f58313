"""Measures with vLLM's own throughput benchmark: one process a cell, the model loaded anew in each."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from maitre.bench_results import Run
from maitre.bench_results.vllm_text import read_vllm_text
from maitre.errors import UsageError
from maitre.records import Cell, FailedTrial, Trial, Workload
from maitre.trial.bench_command import BenchCommand
from maitre.trial.bench_dataset import BenchDataset, write_dataset
from maitre.trial.engine import Measurement, TrialFailure, Watch
from maitre.trial.registry import ServerRegistry
from maitre.trial.started import STOP_GRACE_S, StartedProcess, start_process
from maitre.vllm.failures import classify_failure
from maitre.vllm.log_text import log_lines

_ENGINE_LINE = re.compile(r"Initializing an? (?:V\d )?LLM engine \(v([^)]+)\) with config: .*?\bmax_seq_len=(\d+)")
_SCRIPT_REMEDY = (
    "use vLLM 0.8.5 or later, or give the script of vLLM's repository: -- python benchmarks/benchmark_throughput.py "
    "--model MODEL …"
)


class _Refusal(NamedTuple):
    pattern: str
    what: str
    remedy: str


_REFUSALS = (
    _Refusal(r"invalid choice: '(?:bench|throughput)'", "this vLLM has no `vllm bench throughput`", _SCRIPT_REMEDY),
    _Refusal(
        r"No module named 'pandas'|install vllm\[bench\]",
        "the benchmark's burstgpt dataset needs pandas, which is not in vLLM's environment",
        "install it there: pip install 'vllm[bench]'; or measure with --engine live",
    ),
    _Refusal(
        r"ensure that max_model_len is greater than the sum",
        "a request is longer than max_model_len",
        "raise --max-model-len, or leave such requests out of the workload",
    ),
    _Refusal(
        r"(?i)this script has been moved to the vllm cli|use `?vllm bench throughput",
        "the script only says that it has moved",
        "give the server's command instead: -- vllm serve MODEL …",
    ),
)
"""What only the benchmark says, beside what every vLLM may say."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How to measure."""

    seed: int = 0
    """Decides the content of the prompts."""
    vocab_size: int = 32_000
    """Token ids stay below; every common model has as many."""
    timeout_s: float = 7200.0
    """For one cell, loading the model included."""


class BenchFacts(NamedTuple):
    """What the benchmark's log says of the engine."""

    vllm_version: str
    max_model_len: int


class VllmBenchEngine:
    """`vllm bench throughput`, once a cell. Use it as a context."""

    name: str = "vllm-bench"
    cells: Sequence[Cell] | None = None

    def __init__(self, command: BenchCommand, workload: Workload, folder: Path, options: BenchOptions) -> None:
        """Prepare, and write the dataset.

        Args:
            command: the benchmark's, without dataset and dials.
            workload: the traffic.
            folder: the study's directory, for dataset, logs and records.
            options: how to measure.

        Raises:
            UsageError: the program does not exist.
            SystemFailure: the disk refuses.
        """
        self._command = command
        self._workload = workload
        self._folder = folder
        self._options = options
        self._registry = ServerRegistry(folder)
        self._variables = os.environ | command.environment
        self._dataset = write_dataset(workload, folder / "bench", options.vocab_size, options.seed)
        _program_path(command, self._variables.get("PATH", os.defpath))

    def __enter__(self) -> Self:
        self._registry.stop_orphans()
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left: every run ends its process."""

    @property
    def dataset(self) -> BenchDataset:
        """What the benchmark reads instead of the workload."""
        return self._dataset

    def measure(self, cell: Cell, watch: Watch | None = None) -> Measurement:  # noqa: ARG002 - it cannot be ended
        """Measure one cell.

        Raises:
            TrialFailure: the benchmark failed, or took too long.
            SystemFailure: the disk refuses.
        """
        log_path = self._fresh_log(cell)
        with self._start(cell, log_path) as process:
            exit_code = process.wait(self._options.timeout_s)
            if exit_code is None:
                process.stop(STOP_GRACE_S)
            text = process.log_text()
        runs = read_vllm_text(text, str(log_path))  # printed is measured, even if the engine then does not end well
        run = next((run for run in reversed(runs) if run.total_tokens_per_s or run.tokens_per_s), None)
        if run is None:
            raise TrialFailure(self._failure(cell, text, exit_code))
        return Measurement(bench_trial(run, cell, self._workload), None)

    def facts(self) -> BenchFacts | None:
        """What the newest log says of the engine; None before the first run that came so far."""
        for path in sorted((self._folder / "logs").glob("bench-*.log"), key=lambda p: p.stat().st_mtime, reverse=True):
            if match := _ENGINE_LINE.search(path.read_text("utf-8", errors="replace")):
                return BenchFacts(match[1], int(match[2]))
        return None

    def _start(self, cell: Cell, log_path: Path) -> StartedProcess:
        dials = {
            "--max-num-seqs": str(cell.max_num_seqs),
            "--max-num-batched-tokens": str(cell.max_num_batched_tokens),
        }
        flags = self._dataset.flags(self._workload.num_requests, is_script=self._command.is_script)
        command = self._command.with_flags(flags | dials)
        process_id = uuid.uuid4().hex[:12]
        container_id_file = str(self._registry.folder.resolve() / f"{process_id}.cid")
        folder = str(self._dataset.path.parent)
        words = command.words(mounts={folder: f"{folder}:ro"}, container_id_file=container_id_file)
        serve = command.serve
        is_container = serve is not None and serve.launcher == "container"
        return start_process(
            words,
            self._variables,
            log_path=log_path,
            registry=self._registry,
            server_id=process_id,
            container_tool=serve.container_tool if serve else (),
            container_id_file=container_id_file if is_container else None,
        )

    def _fresh_log(self, cell: Cell) -> Path:
        """A file of its own for each run, so that an earlier run's result is not taken for this one's."""
        number = 1
        while (path := self._folder / "logs" / f"bench-{cell}-{number}.log").exists():
            number += 1
        return path

    def _failure(self, cell: Cell, text: str, exit_code: int | None) -> FailedTrial:
        failure = classify_failure(text, exit_code, timed_out=exit_code is None)
        code, message, remedy = str(failure.code), failure.message, failure.remedy
        if refusal := next((refusal for refusal in _REFUSALS if re.search(refusal.pattern, text)), None):
            code, message, remedy = "refused-setting", refusal.what, refusal.remedy
        elif exit_code is None:
            message = f"the benchmark had no result after {self._options.timeout_s:g} s"
        elif exit_code == 0:
            message, remedy = "the benchmark printed no throughput", "see its log, and run its command by hand"
        return FailedTrial(
            **cell.model_dump(),
            engine=self.name,
            code=code,
            message=message,
            remedy=remedy,
            last_lines=tuple(line for line in log_lines(text) if line.strip())[-20:],
        )


def bench_trial(run: Run, cell: Cell, workload: Workload) -> Trial:
    """The figures of one benchmark; those that it does not print are None.

    Its clock runs from handing in the prompts' text to the last output, so it has the tokenizer's time in it.

    Args:
        run: what it printed.
        cell: the dials.
        workload: the requests that it was given.
    """
    prompt_tokens, output_tokens = run.total_input_tokens, run.total_output_tokens
    counted = None if prompt_tokens is None or output_tokens is None else prompt_tokens + output_tokens
    total_tokens_per_s = run.total_tokens_per_s or run.tokens_per_s  # before 0.6.4: the same, without saying so
    assert total_tokens_per_s is not None
    duration_s = (counted or workload.total_tokens) / total_tokens_per_s
    num_output = int(workload.output_tokens.sum()) if output_tokens is None else output_tokens
    return Trial(
        **cell.model_dump(),
        engine=VllmBenchEngine.name,
        num_requests=workload.num_requests,
        num_steps=None,
        duration_s=duration_s,
        total_tokens_per_s=total_tokens_per_s,
        output_tokens_per_s=num_output / duration_s,
        requests_per_s=workload.num_requests / duration_s,
        ttft_s=None,
        itl_s=None,
        e2e_s=None,
        num_preemptions=None,
        num_recomputed_tokens=None,
        cached_token_share=None,
        kv_usage=None,
        kv_usage_max=None,
        num_gpu_blocks=None,
        bound_by=None,
        bound_share={},
        spoiled_by=_wrong_lengths(prompt_tokens, output_tokens, workload),
    )


def _wrong_lengths(prompt_tokens: int | None, output_tokens: int | None, workload: Workload) -> str:
    """Whether the benchmark's own counts are those of the workload; empty if they are, or if it does not count."""
    asked = {"prompt": int(workload.prompt_tokens.sum()), "output": int(workload.output_tokens.sum())}
    counted = {"prompt": prompt_tokens, "output": output_tokens}
    wrong = [
        f"{count:,} {kind} tokens instead of {asked[kind]:,}"
        for kind, count in counted.items()
        if count is not None and count != asked[kind]
    ]
    return f"the benchmark ran {' and '.join(wrong)}: not the workload's lengths" if wrong else ""


def _program_path(command: BenchCommand, path: str) -> None:
    """Refuse a program that does not exist, before anything runs."""
    program = (command.serve.words if command.serve else command.before)[0]
    if shutil.which(program, path=path) is None:
        raise UsageError(f"`{command}`: there is no program '{program}'", "check its path, or the PATH")
