"""`maitre tune --engine vllm-bench -- vllm serve …`: the grid by vLLM's own benchmark, in a study that can go on."""

import shlex
import sys

import pytest

from maitre.cli import tune_bench
from maitre.cli.grid_options import GridOptions
from maitre.cli.search_options import SearchOptions
from maitre.cli.server_options import ServerOptions
from maitre.cli.workload_options import WorkloadOptions
from maitre.errors import InputError, SystemFailure, UsageError

FAKE = r"""
import os, sys
flags = dict(zip(sys.argv[1:], sys.argv[2:]))
seqs, tokens = int(flags["--max-num-seqs"]), int(flags["--max-num-batched-tokens"])
with open(os.environ["CALLS"], "a") as file:
    print(f"{seqs}x{tokens}", file=file)
if f"{seqs}x{tokens}" == os.environ.get("BREAKS"):
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"); sys.exit(1)
print("Initializing a V1 LLM engine (v0.30.1) with config: model='m', max_seq_len=777, dtype=x")
print(f"Throughput: 1.00 requests/s, {100 * seqs}.00 total tokens/s, 40.00 output tokens/s")
"""
"""The more slots the faster; CALLS is a file of the cells that were run, BREAKS the cell without enough memory."""


@pytest.fixture
def measure(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def measure(spec="fixed:12:5", flags="", present="4x64", breaks=""):
        words = [f"CALLS={tmp_path / 'calls'}", f"BREAKS={breaks}", sys.executable, "-c", FAKE, "serve", "m"]
        grid = GridOptions(present=present, max_num_seqs="4,8", max_num_batched_tokens="64")
        workload = WorkloadOptions(workload=spec, num_requests=20)
        command = shlex.join([*words, *flags.split()])
        return tune_bench.measure(workload, ServerOptions(), grid, SearchOptions(), command, tmp_path / "s")

    return measure


def calls(folder):
    return (folder / "calls").read_text().split()


def test_every_cell_is_run_once_and_the_faster_one_is_recommended(measure, tmp_path):
    study = measure()
    assert calls(tmp_path) == ["4x64", "8x64"]
    assert (str(study.recommended), str(study.recommendation.baseline), study.engine) == ("8x64", "4x64", "vllm-bench")
    assert study.recommendation.gain == pytest.approx(1.0)
    assert (study.server.vllm_version, study.server.max_model_len) == ("0.30.1", 777)
    assert study.calibration == "measured with vLLM 0.30.1"


def test_a_cell_that_fails_is_left_out_and_what_is_finished_is_not_run_again(measure, tmp_path):
    study = measure(breaks="8x64")
    assert [failed.code for failed in study.failed] == ["oom-other"]
    (tmp_path / "s" / "study.json").unlink()  # as if it had been killed before the end
    again = measure(breaks="8x64")
    assert calls(tmp_path) == ["4x64", "8x64", "8x64"]
    assert len(again.cells) == 1


def test_a_present_cell_that_fails_ends_it(measure):
    with pytest.raises(SystemFailure, match="the present cell 4x64 failed"):
        measure(breaks="4x64")


def test_the_present_setting_may_stand_in_the_command(measure, tmp_path):
    measure(present=None, flags="--max-num-seqs 4 --max-num-batched-tokens 64")
    assert calls(tmp_path) == ["4x64", "8x64"]


def test_requests_longer_than_the_command_allows_are_refused_before_anything_runs(measure, tmp_path):
    with pytest.raises(InputError, match="longer than max_model_len"):
        measure(spec="fixed:200:100", flags="--max-model-len=256")
    assert not (tmp_path / "calls").exists()


def test_what_the_dataset_cannot_keep_is_said(measure, capfd):
    measure(spec="fixed:2000:100")
    assert "maitre: some requests are outside of what the benchmark's sharegpt dataset keeps" in capfd.readouterr().err


def test_no_command_is_an_error_of_usage(tmp_path):
    workload = WorkloadOptions(workload="fixed:12:5", num_requests=20)
    with pytest.raises(UsageError, match="no command"):
        tune_bench.measure(workload, ServerOptions(), GridOptions(), SearchOptions(), None, tmp_path / "s")
