"""Whatever is wrong with what simulate, tune and replay are told: one message with a hint, exit code 2, and no more."""

import json
import shutil
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDINGS = REPOSITORY / "tests" / "data" / "recordings"
RECORDING = RECORDINGS / "qwen2.5-14b-lognormal-kv4521.json"
ENGINE = ("--engine", f"recorded:{RECORDING}")
WORKLOAD = "fixed:64:16"
MODEL = ("--model", "qwen2.5-14b")
GPU = ("--gpu", "h200")
SERVER = (*MODEL, *GPU, "--max-model-len", "8192")
CONFIG = json.loads((REPOSITORY / "examples" / "qwen2.5-14b" / "config.json").read_text())


@pytest.fixture
def complaint(run, tmp_path, monkeypatch):
    """Runs a command line that must fail in an empty folder; returns what it says on stderr."""

    def call(*arguments):
        monkeypatch.chdir(tmp_path)
        before = sorted(tmp_path.rglob("*"))
        code, out, err = run(*arguments)
        lines = err.splitlines()
        assert (code, out) == (2, "")
        assert len(lines) == 2, err
        assert lines[0].startswith("maitre: ")
        assert lines[1].startswith("  hint: ")
        assert len(lines[1]) > len("  hint: ")
        assert sorted(tmp_path.rglob("*")) == before  # no half-made study is left behind
        return err

    return call


def named(table):
    return pytest.mark.parametrize(("arguments", "said"), table.values(), ids=table)


BOTH_VERBS = pytest.mark.parametrize("verb", ["simulate", "tune"])

WORKLOADS = {
    "none": ((), "no workload is given"),
    "missing": (("requests.csv",), "requests.csv: no such file"),
    "directory": ((".",), "is a directory"),
    "no-spec": (("fixed:64",), "no spec of a workload"),
    "unknown-reference": (("--reference", "chatt"), "no reference workload 'chatt'"),
    "both": ((WORKLOAD, "--reference", "chat"), "both given"),
    "no-requests": ((WORKLOAD, "--num-requests", "0"), "0 requests are too few"),
    "negative-requests": ((WORKLOAD, "--num-requests", "-3"), "-3 requests are too few"),
    "too-many-requests": ((WORKLOAD, "--num-requests", "1000000000000"), "too many"),
    "half-a-request": ((WORKLOAD, "--num-requests", "1.5"), "--num-requests"),
    "requests-in-words": ((WORKLOAD, "--num-requests", "many"), "--num-requests"),
    "negative-seed": ((WORKLOAD, "--seed", "-1"), "seed -1 is negative"),
    "seed-in-words": ((WORKLOAD, "--seed", "x"), "--seed"),
    "longer-than-the-model": (("fixed:8000:1000",), "requests are longer than max_model_len (8192 tokens"),
    "open-loop-without-times": ((WORKLOAD, "--open-loop"), "--open-loop needs arrival times"),
    "columns-of-a-spec": ((WORKLOAD, "--time-column", "t"), "no columns"),
    "two-workloads": ((WORKLOAD, "fixed:1:1"), "fixed:1:1"),
    "unknown-option": ((WORKLOAD, "--max-num-seq", "8"), "--max-num-seq"),
}


@BOTH_VERBS
@named(WORKLOADS)
def test_a_workload_that_cannot_be(complaint, verb, arguments, said):
    assert said in complaint(verb, *arguments, *SERVER)


OPTIONS = {
    "no-model": (GPU, "no model is given"),
    "no-gpu": (MODEL, "no GPU is given"),
    "model-typo": (("--model", "qwen2.5-14", *GPU), "did you mean Qwen/Qwen2.5-14B"),
    "gpu-typo": ((*MODEL, "--gpu", "h2000"), "did you mean H200"),
    "gpu-of-many-sizes": ((*MODEL, "--gpu", "a100"), "comes in several sizes"),
    "model-too-large": (("--model", "qwen2.5-72b", "--gpu", "rtx 4090"), "leaves no room for a KV cache"),
    "length-too-large": (
        (*MODEL, "--gpu", "a100-40gb", "--gpu-memory-utilization", "0.85"),
        "one request of max_model_len 32,768 needs 6.00 GiB of KV cache",
    ),
    "length-of-the-model": ((*MODEL, *GPU, "--max-model-len", "100k"), "longer than the 32,768 positions"),
    "length-zero": ((*MODEL, *GPU, "--max-model-len", "0"), "'0' is not a number of tokens"),
    "length-negative": ((*MODEL, *GPU, "--max-model-len", "-5"), "'-5' is not a number of tokens"),
    "length-empty": ((*MODEL, *GPU, "--max-model-len", ""), "'' is not a number of tokens"),
    "dtype": ((*SERVER, "--dtype", "int4"), "dtype 'int4' is not known"),
    "kv-dtype": ((*SERVER, "--kv-cache-dtype", "fp4"), "kv_cache_dtype 'fp4' is not known"),
    "kv-dtype-packed": ((*SERVER, "--kv-cache-dtype", "nvfp4"), "not covered yet"),
    "gpus-zero": ((*SERVER, "--tensor-parallel-size", "0"), "--tensor-parallel-size"),
    "gpus-half": ((*SERVER, "--tensor-parallel-size", "1.5"), "--tensor-parallel-size"),
    "gpus-uneven": ((*SERVER, "--tensor-parallel-size", "3"), "cannot be shared out evenly"),
    "memory-zero": ((*SERVER, "--gpu-memory-utilization", "0"), "--gpu-memory-utilization"),
    "memory-above-one": ((*SERVER, "--gpu-memory-utilization", "1.1"), "--gpu-memory-utilization"),
    "memory-nan": ((*SERVER, "--gpu-memory-utilization", "nan"), "--gpu-memory-utilization"),
    "block-zero": ((*SERVER, "--block-size", "0"), "--block-size"),
    "block-huge": ((*SERVER, "--block-size", "9" * 25), "--block-size"),
    "version": ((*SERVER, "--vllm-version", "new"), "'new' is not a version of vLLM"),
    "version-old": ((*SERVER, "--vllm-version", "0.6.3"), "V0 engine"),
    "threshold-negative": ((*SERVER, "--long-prefill-token-threshold", "-1"), "long_prefill_token_threshold"),
    "threshold-half": ((*SERVER, "--long-prefill-token-threshold", "0.5"), "--long-prefill-token-threshold"),
    "watermark": ((*SERVER, "--watermark", "1"), "watermark 1.0 is not a share"),
    "watermark-nan": ((*SERVER, "--watermark", "nan"), "watermark nan is not a share"),
    "watermark-old": ((*SERVER, "--watermark", "0.1", "--vllm-version", "0.20.0"), "has no --watermark"),
    "policy": ((*SERVER, "--scheduling-policy", "lifo"), "--scheduling-policy"),
    "seqs-zero": ((*SERVER, "--max-num-seqs", "0"), "'0' is not a number of tokens"),
    "seqs-negative": ((*SERVER, "--max-num-seqs", "-8"), "'-8' is not a number of tokens"),
    "seqs-gap": ((*SERVER, "--max-num-seqs", "8,,16"), "'' is not a number of tokens"),
    "seqs-empty": ((*SERVER, "--max-num-seqs", ""), "'' is not a number of tokens"),
    "seqs-huge": ((*SERVER, "--max-num-seqs", "9" * 20), "is not a number of tokens"),
    "tokens-half": ((*SERVER, "--max-num-batched-tokens", "4096.5"), "is not a number of tokens"),
    "tokens-empty": ((*SERVER, "--max-num-batched-tokens", ""), "'' is not a number of tokens"),
    "tokens-below-seqs": (
        (*SERVER, "--max-num-seqs", "64", "--max-num-batched-tokens", "32"),
        "max_num_batched_tokens (32) must be at least max_num_seqs (64)",
    ),
    "present-no-cell": ((*SERVER, "--present", "256"), "'256' is not a cell"),
    "present-empty": ((*SERVER, "--present", ""), "'' is not a cell"),
    "present-three": ((*SERVER, "--present", "1x2x3"), "'1x2x3' is not a cell"),
    "present-words": ((*SERVER, "--present", "axb"), "'a' is not a number of tokens"),
    "present-refused": ((*SERVER, "--present", "256x8"), "must be at least max_num_seqs (256)"),
    "grid": ((*SERVER, "--grid", "fine"), "--grid"),
    "grid-and-list": ((*SERVER, "--grid", "auto", "--max-num-seqs", "8"), "--grid auto chooses the values itself"),
    "blocks-zero": ((*SERVER, "--num-gpu-blocks", "0"), "--num-gpu-blocks"),
    "blocks-null-only": ((*SERVER, "--num-gpu-blocks", "1"), "make no KV pool"),
    "blocks-too-few": ((*SERVER, "--num-gpu-blocks", "3"), "larger than the KV pool of 32 tokens"),
    "blocks-huge": ((*SERVER, "--num-gpu-blocks", "9" * 25), "--num-gpu-blocks"),
    "blocks-in-words": ((*SERVER, "--num-gpu-blocks", "all"), "--num-gpu-blocks"),
}


@BOTH_VERBS
@named(OPTIONS)
def test_an_option_that_cannot_be(complaint, verb, arguments, said):
    assert said in complaint(verb, WORKLOAD, *arguments)


FILES = {
    "empty": (b"", "the file is empty"),
    "binary": (bytes(range(256)) * 9, "binary data"),
    "utf-16": ("prompt_tokens,output_tokens\n1,2\n".encode("utf-16"), "binary data"),
    "latin-1": ("prompt_tokens,output_tokens,Größe\n".encode("latin-1"), "is not UTF-8"),
    "no-columns": (b"a,b\n1,2\n", "no column is recognised"),
    "no-rows": (b"prompt_tokens,output_tokens\n", "no rows"),
    "truncated-lines": (b'{"prompt_tokens":1,"output_tokens":2}\n{"prompt_tok', "line 2"),
    "truncated-workload": (b'{"schema_version":"maitre-workload-1","name":', ""),
    "nan-arrival": (
        b'{"schema_version":"maitre-workload-1","name":"x","source":"","prompt_tokens":[1],"output_tokens":[1],"arrival_s":[NaN]}',
        "field 'arrival_s'",
    ),
    "huge-length": (
        b'{"schema_version":"maitre-workload-1","name":"x","source":"s","prompt_tokens":[1' + b"0" * 30
        + b'],"output_tokens":[1]}',
        "field 'prompt_tokens'",
    ),
    "a-dict-of-lengths": (
        b'{"schema_version":"maitre-workload-1","name":"x","source":"s","prompt_tokens":{"a":1},"output_tokens":[1]}',
        "field 'prompt_tokens'",
    ),
}  # fmt: skip


@BOTH_VERBS
@named(FILES)
def test_a_file_of_requests_that_is_none(complaint, tmp_path, verb, arguments, said):
    path = tmp_path / "requests"
    path.write_bytes(arguments)
    err = complaint(verb, path, *SERVER)
    assert str(path) in err
    assert said in err


CONFIGS = {
    "empty": ("", "the file is empty"),
    "binary": ("\0\1", "binary data"),
    "truncated": (json.dumps(CONFIG)[:-9], "truncated"),
    "list": ("[]", "a JSON object was expected"),
    "no-fields": ("{}", "architectures"),
    "field-missing": (json.dumps(CONFIG | {"num_hidden_layers": None}), "num_hidden_layers is missing"),
    "unknown": (json.dumps(CONFIG | {"architectures": ["FancyForCausalLM"]}), "FancyForCausalLM is not covered"),
}


@BOTH_VERBS
@named(CONFIGS)
def test_a_model_that_cannot_be_read(complaint, tmp_path, verb, arguments, said):
    path = tmp_path / "config.json"
    path.write_text(arguments)
    err = complaint(verb, WORKLOAD, "--model", tmp_path, *GPU)
    assert str(path) in err
    assert said in err


TUNE = {
    "engine": ((WORKLOAD, *SERVER, "--engine", "live-ish"), "engine 'live-ish' is not known"),
    "engine-empty": ((WORKLOAD, *SERVER, "--engine", ""), "engine '' is not known"),
    "recording-missing": (("--engine", "recorded:r.json"), "r.json: no such file"),
    "recording-nameless": (("--engine", "recorded:"), "is a directory"),
    "recording-and-flag": (("--watermark", "0.1", *ENGINE), "its own scheduler flags"),
    "recording-and-blocks": (("--num-gpu-blocks", "100", *ENGINE), "does not take --blocks"),
    "recording-and-times": (("--open-loop", *ENGINE), "does not take --open-loop"),
    "recording-and-auto": (("--grid", "auto", *ENGINE), "a recording has a fixed grid"),
    "recording-other-grid": (("--max-num-seqs", "7", *ENGINE), "no recorded cell is on this grid"),
    "recording-other-cell": (("--present", "5x5000", *ENGINE), "5x5000 was not recorded"),
    "epsilon-zero": ((WORKLOAD, *SERVER, "--epsilon", "0"), "--epsilon"),
    "epsilon-one": ((WORKLOAD, *SERVER, "--epsilon", "1"), "--epsilon"),
    "epsilon-nan": ((WORKLOAD, *SERVER, "--epsilon", "nan"), "--epsilon"),
    "delta-negative": ((WORKLOAD, *SERVER, "--delta", "-0.1"), "--delta"),
    "delta-in-words": ((WORKLOAD, *SERVER, "--delta", "few"), "--delta"),
}


@named(TUNE)
def test_a_tuning_that_cannot_be(complaint, arguments, said):
    assert said in complaint("tune", *arguments)


def test_a_study_that_exists_is_not_written_over(complaint, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "study.json").write_text("mine")
    assert "old exists already" in complaint("tune", *ENGINE, "--study", "old")
    assert "exists already" in complaint("tune", WORKLOAD, *SERVER, "--study", "old/study.json")


def test_a_disk_that_refuses_is_exit_code_3(run, tmp_path):
    (tmp_path / "file").write_text("x")
    code, out, err = run("tune", *ENGINE, "--study", tmp_path / "file" / "s")
    assert (code, out) == (3, "")
    assert "cannot be written" in err


REPLAY = {
    "nothing": ((), "--recording"),
    "missing": (("r.json",), "r.json: no such file"),
    "directory": ((".",), "is a directory"),
    "a-workload": ((REPOSITORY / "examples" / "chat.csv",), "not valid JSON"),
    "a-config": ((REPOSITORY / "examples" / "qwen2.5-14b" / "config.json",), "not a recording of maitre: schema"),
    "other-cell": ((RECORDING, "--calibrate-on", "5x5000"), "5x5000 is not in"),
    "no-cell": ((RECORDING, "--calibrate-on", "64x1024,"), "'' is not a cell"),
    "empty-cell": ((RECORDING, "--calibrate-on", ""), "'' is not a cell"),
    "two": ((RECORDING, RECORDING), "Unused"),
}


@named(REPLAY)
def test_a_replay_that_cannot_be(complaint, arguments, said):
    assert said in complaint("replay", *arguments)


@pytest.mark.parametrize("verb", [("replay",), ("tune", "--engine")])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *(({"num_gpu_blocks": 1}, "num_gpu_blocks"), ({"num_gpu_blocks": 20}, "larger than the KV pool")),
        *(
            ({"vllm_version": "new"}, "not a version"),
            ({"cells": []}, "cells"),
        ),
    ],
)
def test_a_recording_of_a_server_that_cannot_be(complaint, tmp_path, verb, changes, said):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(json.loads(RECORDING.read_text()) | changes))
    shutil.copy(RECORDING.with_suffix(".npz"), path.with_suffix(".npz"))
    recording = path if verb == ("replay",) else f"recorded:{path}"
    study = () if verb == ("replay",) else ("--study", "s")
    assert said in complaint(*verb, recording, *study)


def test_a_recording_of_a_gpu_that_nobody_knows_needs_the_present_setting(complaint, run, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(json.loads(RECORDING.read_text()) | {"gpu": "FOO"}))
    shutil.copy(RECORDING.with_suffix(".npz"), path.with_suffix(".npz"))
    assert "--present" in complaint("tune", "--engine", f"recorded:{path}", "--study", "s")
    code, out, _ = run("replay", path)
    assert code == 0
    assert "not known on FOO" in out


@pytest.mark.parametrize("verb", ["simulate", "tune", "replay"])
def test_help_lists_vllms_own_flags(run, verb):
    code, out, err = run(verb, "--help")
    assert (code, err) == (0, "")
    expected = ("--calibrate-on",) if verb == "replay" else ("--max-num-seqs", "--max-num-batched-tokens", "--gpu")
    for flag in (*expected, "--json"):
        assert flag in out
