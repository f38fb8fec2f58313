"""A benchmark process a cell: what it prints becomes a trial, what fails a failed one, and nothing is left behind."""

import json
import os
import signal
import sys
import threading
import time

import pytest

from maitre.bench_results.vllm_text import read_vllm_text
from maitre.errors import UsageError
from maitre.records import Cell, Workload
from maitre.trial.bench_command import BenchCommand
from maitre.trial.engine import TrialFailure
from maitre.trial.processes import list_processes
from maitre.trial.vllm_bench import BenchOptions, VllmBenchEngine, bench_trial

CELL = Cell(max_num_seqs=8, max_num_batched_tokens=256)
FAKE = r"""
import json, os, signal, subprocess, sys, time
how = os.environ.get("HOW", "")
flags = dict(zip(sys.argv[1:], sys.argv[2:]))
print("INFO 01-01 00:00:00 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='m', "
      "dtype=x, max_seq_len=4096, tp=1", flush=True)
print("started", os.getpid(), flush=True)
if how.startswith("say:"):
    print(how[4:]); sys.exit(1)
if how == "hang":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"])
    print("child", child.pid, flush=True); time.sleep(99)
if how == "silent":
    sys.exit(0)
rows = json.load(open(flags["--dataset-path"]))
assert len(rows) == int(flags["--num-prompts"])
counts = [sum(len(row["conversations"][turn]["value"].split()) for row in rows) for turn in (0, 1)]
counts[0] += int(how or 0)
seconds = 40.96 / int(flags["--max-num-seqs"])
print(f"Throughput: {len(rows) / seconds:.2f} requests/s, {sum(counts) / seconds:.2f} total tokens/s, "
      f"{counts[1] / seconds:.2f} output tokens/s")
print(f"Total num prompt tokens:  {counts[0]}")
print(f"Total num output tokens:  {counts[1]}", flush=True)
if how == "0":
    os.abort()
"""
"""Counts the tokens of its dataset by words, as the real one does with its tokenizer; takes 40.96 / max_num_seqs s."""


@pytest.fixture
def workload():
    return Workload(name="w", source="by hand", prompt_tokens=[500, 700, 40], output_tokens=[100, 9, 400])


@pytest.fixture
def make_engine(tmp_path, workload, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def make(how="", **options):
        words = [f"HOW={how}", sys.executable, "-c", FAKE, "serve", "m", "--port", "81"]
        options = BenchOptions(vocab_size=2048, **options)
        return VllmBenchEngine(BenchCommand.parse(words), workload, tmp_path / "study", options)

    return make


def measure_failure(engine):
    with engine, pytest.raises(TrialFailure) as caught:
        engine.measure(CELL)
    return caught.value.failed


def left_behind(folder):
    """Processes of the fake that still run, and records of them."""
    logs = "\n".join(path.read_text() for path in (folder / "study" / "logs").iterdir())
    pids = {int(line.split()[1]) for line in logs.splitlines() if line.startswith(("started ", "child "))}
    running = [process.pid for process in list_processes() if process.pid in pids and not process.has_ended]
    records = [path for path in folder.rglob("*.json") if path.parent.name == "servers"]
    return running + records


def test_each_cell_is_run_at_its_dials_and_its_figures_are_the_tools(make_engine, workload, tmp_path):
    with make_engine() as engine:
        small = engine.measure(CELL).trial
        large = engine.measure(Cell(max_num_seqs=32, max_num_batched_tokens=512))
    assert large.steps is None
    assert (small.duration_s, large.trial.duration_s) == pytest.approx((5.12, 1.28), rel=1e-4)
    assert large.trial.total_tokens_per_s == pytest.approx(workload.total_tokens / 1.28, rel=1e-4)
    assert large.trial.output_tokens_per_s == pytest.approx(509 / 1.28, rel=1e-4)
    assert large.trial.requests_per_s == pytest.approx(3 / 1.28, rel=1e-4)
    assert (large.trial.engine, large.trial.max_num_seqs, large.trial.spoiled_by) == ("vllm-bench", 32, "")
    unknown = ("ttft_s", "itl_s", "e2e_s", "num_steps", "num_preemptions", "kv_usage", "num_gpu_blocks", "bound_by")
    assert [getattr(small, name) for name in unknown] == [None] * len(unknown)
    assert small.bound_share == {}
    assert left_behind(tmp_path) == []


def test_other_lengths_than_the_workloads_are_said(make_engine):
    with make_engine("7") as engine:
        trial = engine.measure(CELL).trial
    assert trial.spoiled_by == "the benchmark ran 1,247 prompt tokens instead of 1,240: not the workload's lengths"


def test_a_result_counts_even_if_the_engine_does_not_end_well(make_engine):
    with make_engine("0") as engine:
        assert engine.measure(CELL).trial.duration_s == pytest.approx(5.12, rel=1e-4)


@pytest.mark.parametrize(
    "printed",
    [
        "Throughput: 1.50 requests/s, 874.50 tokens/s",
        "Throughput: 1.50 requests/s, 874.50 total tokens/s, 254.50 output tokens/s",
        (
            "Throughput: 1.50 requests/s, 874.50 total tokens/s, 254.50 output tokens/s\n"
            "Total num prompt tokens:  1240\nTotal num output tokens:  509"
        ),
    ],
)
def test_the_words_of_every_version_give_the_same_figures(printed, workload):
    """0.4 to 0.6.3; 0.6.4 to 0.7.3; 0.8 and later."""
    (run,) = read_vllm_text(printed, "printed")
    trial = bench_trial(run, CELL, workload)
    assert trial.duration_s == pytest.approx(2)
    assert (trial.total_tokens_per_s, trial.output_tokens_per_s, trial.requests_per_s) == (874.5, 254.5, 1.5)
    assert trial.spoiled_by == ""


@pytest.mark.parametrize(
    ("said", "code", "remedy"),
    [
        ("ValueError: max_num_batched_tokens (4) must be greater than or equal to max_num_seqs (8).",
         "refused-setting", "raise --max-num-batched-tokens to 8"),
        ("vllm: error: argument subparser: invalid choice: 'bench' (choose from 'serve', 'complete', 'chat')",
         "refused-setting", "benchmark_throughput.py"),
        ("vllm bench: error: argument bench_type: invalid choice: 'throughput' (choose from serve)",
         "refused-setting", "0.8.5 or later"),
        ("ModuleNotFoundError: No module named 'pandas'", "refused-setting", "vllm[bench]"),
        ("AssertionError: Please ensure that max_model_len is greater than the sum of prompt_len and x",
         "refused-setting", "raise --max-model-len"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "oom-other", "lower"),
        ("nothing that anybody knows", "unknown", "log"),
    ],
)  # fmt: skip
def test_a_failure_is_told_with_its_remedy(make_engine, tmp_path, said, code, remedy):
    failed = measure_failure(make_engine(f"say:{said}"))
    assert (failed.code, failed.engine, failed.cell) == (code, "vllm-bench", CELL)
    assert failed.last_lines[-1] == said
    assert remedy in failed.remedy
    assert left_behind(tmp_path) == []


def test_an_end_without_a_result_is_a_failure(make_engine):
    assert "printed no throughput" in measure_failure(make_engine("silent")).message


def test_a_run_that_takes_too_long_is_ended_with_its_children(make_engine, tmp_path, monkeypatch):
    monkeypatch.setattr("maitre.trial.vllm_bench.STOP_GRACE_S", 0.2)
    failed = measure_failure(make_engine("hang", timeout_s=1.0))
    assert (failed.code, failed.message) == ("timeout", "the benchmark had no result after 1 s")
    assert left_behind(tmp_path) == []


def test_an_interruption_ends_it_too(make_engine, tmp_path):
    def interrupt_when_it_runs():
        log = tmp_path / "study" / "logs" / f"bench-{CELL}-1.log"
        while not (log.exists() and "child" in log.read_text()):
            time.sleep(0.05)
        for _ in range(2):  # the second one cuts the grace of the fake, which ignores SIGTERM
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    threading.Thread(target=interrupt_when_it_runs).start()
    with pytest.raises(KeyboardInterrupt), make_engine("hang") as engine:
        engine.measure(CELL)
    assert left_behind(tmp_path) == []


def test_while_it_runs_it_is_recorded_for_a_run_that_must_stop_it(make_engine, tmp_path):
    seen = []

    def look():
        folder = tmp_path / "study" / "servers"
        while not seen:
            seen.extend(json.loads(path.read_text()) for path in folder.glob("*.json"))

    watcher = threading.Thread(target=look)
    watcher.start()
    with make_engine() as engine:
        engine.measure(CELL)
    watcher.join()
    assert "--max-num-seqs" in seen[0]["command"]
    assert seen[0]["starter_pid"] == os.getpid()


def test_the_log_says_which_vllm_it_was(make_engine):
    with make_engine() as engine:
        assert engine.facts() is None
        engine.measure(CELL)
        assert engine.facts() == ("0.32.0", 4096)


def test_a_program_that_does_not_exist_is_refused_before_anything_runs(workload, tmp_path):
    command = BenchCommand.parse(["no-such-vllm", "serve", "m"])
    with pytest.raises(UsageError, match="no program 'no-such-vllm'"):
        VllmBenchEngine(command, workload, tmp_path / "study", BenchOptions())
