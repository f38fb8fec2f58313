"""`maitre budget --log`: the keys of its JSON, computed beside logged, the pool at other dials, and bad input."""

import gzip
import io
import json
import tracemalloc
from pathlib import Path

import pytest

STARTS = json.loads((Path(__file__).parents[1] / "data" / "startup_memory_h200.json").read_text("utf-8"))["starts"]
NAMES = {
    "qwen2.5-14b": "Qwen2.5-14B",
    "qwen2.5-7b": "Qwen2.5-7B",
    "qwen2.5-1.5b": "Qwen2.5-1.5B",
    "qwen2.5-32b": "Qwen2.5-32B",
}


COMPILED = [start for start in STARTS if "lines" in start and start["compile_s"] > 10]


def measured(model, seqs, tokens):
    """A recorded start on an H200 (vLLM 0.26.0) of this setting, compiled afresh."""
    return next(
        start for start in STARTS
        if (start["model"], start["max_num_seqs"], start["max_num_batched_tokens"]) == (model, seqs, tokens)
    )  # fmt: skip


def log_of(start):
    flags = {key: start[key] for key in ("max_num_seqs", "max_num_batched_tokens")} | {"max_model_len": 8192}
    version = "INFO 11-29 16:53:37 [api_server.py:1] vLLM API server version 0.26.0"
    head = [version, f"INFO 11-29 16:53:37 [api_utils.py:273] non-default args: {flags}"]
    return "\n".join(head + [f"INFO 11-29 16:54:33 [gpu_worker.py:560] {line}" for line in start["lines"]]) + "\n"


@pytest.fixture
def read(run, tmp_path):
    """Writes a log, reads it with further arguments, and returns exit code and JSON."""

    def call(content, *arguments):
        file = tmp_path / "server.log"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        code, out, err = run("budget", "--log", file, *arguments, "--json")
        assert err == ""
        return code, json.loads(out)

    return call


def matches(expected, got):
    if isinstance(expected, dict):
        if "any_of" in expected:
            return any(matches(entry, got) for entry in expected["any_of"])
        if "present" in expected:
            return got is not None
        if "value" in expected:
            allowed = expected.get("abs", expected.get("rel", 0) * abs(expected["value"]))
            return got is not None and abs(got - expected["value"]) <= allowed
        return isinstance(got, dict) and all(matches(entry, got.get(key)) for key, entry in expected.items())
    if isinstance(expected, list):
        return isinstance(got, list) and len(expected) == len(got) and all(map(matches, expected, got))
    return got == expected


def test_every_public_start_up_through_the_verb(run, shared_path):
    wrong, num_cases = [], 0
    for case in json.loads((shared_path / "cases" / "cases.json").read_text("utf-8")):
        if case["kind"] != "startup-log":
            continue
        (name,) = case["files"]
        code, out, _ = run("budget", "--log", shared_path / "cases" / name, "--json")
        answer, num_cases = json.loads(out), num_cases + 1
        wrong += [(case["id"], key) for key in case["expect"] if not matches(case["expect"][key], answer.get(key))]
        has_pool = answer["kv_cache_tokens"] is not None or answer["num_gpu_blocks"] is not None
        assert code == (0 if has_pool and answer["failure"] is None else 1), case["id"]
    assert not wrong
    assert num_cases >= 22


KEYS = {
    "kv_cache_tokens", "num_gpu_blocks", "num_cpu_blocks", "block_size", "max_concurrency", "max_concurrency_at_len",
    "available_kv_gib", "max_num_seqs", "max_num_batched_tokens", "failure", "combine_rule", "kv_bytes_per_token",
    "fixed_bytes_per_seq", "kv_tokens", "max_seqs", "parts", "source",
}  # fmt: skip


def test_json_has_the_keys_that_other_programs_read(read):
    code, found = read(log_of(measured("qwen2.5-14b", 512, 8192)), "fixed:512:256")
    assert code == 0
    assert found.keys() >= KEYS
    assert (found["kv_tokens"], found["max_num_seqs"], found["max_num_batched_tokens"]) == (526_576, 512, 8192)
    assert found["max_seqs"] == int((32_911 - 1) / 40.4375)  # mean blocks of 512 + j, j = 0 … 255
    assert {part["name"] for part in found["parts"]} == {"weights", "activation peak", "outside PyTorch", "KV pool"}
    assert "startups" not in found


@pytest.mark.parametrize("start", COMPILED, ids=lambda start: f"{start['model']}-{start['num_gpu_blocks']}")
def test_computed_and_logged_agree_on_an_h200(read, start):
    _, found = read(log_of(start), "--model", NAMES[start["model"]], "--gpu", "H200", "--gpu-memory-utilization", "0.9")
    sides = {side["name"]: side for side in found["comparison"]["sides"]}
    assert abs(found["comparison"]["difference_gib"]) < 0.03
    for name in ("weights", "activation peak", "outside PyTorch", "KV pool"):
        assert sides[name]["computed_gib"] == pytest.approx(sides[name]["logged_gib"], abs=0.03)


def test_one_log_foretells_the_pool_at_other_dials(read):
    present = measured("qwen2.5-14b", 512, 8192)
    _, found = read(log_of(present), "--model", "Qwen2.5-14B", "--gpu", "H200", "--dials")
    cells = {(c["max_num_seqs"], c["max_num_batched_tokens"]): c for c in found["pool_by_dials"]}
    assert cells[512, 8192]["is_present"]
    for seqs, tokens in ((512, 65_536), (64, 32_768), (32, 8192), (512, 8192)):
        blocks = measured("qwen2.5-14b", seqs, tokens)["num_gpu_blocks"]
        assert cells[seqs, tokens]["num_gpu_blocks"] == pytest.approx(blocks, rel=2e-4)


def test_what_was_logged_corrects_every_cell(read):
    text = log_of(measured("qwen2.5-14b", 512, 8192))
    poorer = text.replace("Available KV cache memory: 96.42 GiB", "Available KV cache memory: 90.42 GiB")
    pools = []
    for content in (text, poorer):
        _, found = read(content, "--model", "Qwen2.5-14B", "--gpu", "H200", "--dials")
        pools.append(
            {(c["max_num_seqs"], c["max_num_batched_tokens"]): c["num_gpu_blocks"] for c in found["pool_by_dials"]}
        )
    lost = 6 * 2**30 / (196_608 * 16)
    assert all(pools[0][cell] - pools[1][cell] == pytest.approx(lost, abs=1) for cell in pools[0])


def test_a_difference_is_explained_part_by_part(run, tmp_path):
    file = tmp_path / "server.log"
    text = log_of(measured("qwen2.5-14b", 512, 8192))
    text = text.replace("Available KV cache memory: 96.42", "Available KV cache memory: 94.42")
    file.write_text(text.replace("1.61 GiB for peak activation", "3.61 GiB for peak activation"))
    code, out, _ = run("budget", "--log", file, "--model", "Qwen2.5-14B", "--gpu", "H200")
    assert code == 0
    assert "activation peak: logged 3.61, 2.00 GiB less for the pool" in out
    assert "not explained" not in out
    file.write_text(text)
    assert "-2.00 GiB are not explained" in run("budget", "--log", file, "--model", "Qwen2.5-14B", "--gpu", "H200")[1]


def test_another_models_log_is_noticed(read):
    _, found = read(log_of(measured("qwen2.5-7b", 512, 16384)), "--model", "Qwen2.5-14B", "--gpu", "H200")
    told = " ".join(found["comparison"]["explanations"])
    assert "weights: logged 14.29" in told
    assert "another model or --kv-cache-dtype" in told


def test_what_cannot_be_computed_does_not_hide_the_log(run, tmp_path):
    file = tmp_path / "server.log"
    version = "INFO x [a.py:1] vLLM API server version 0.6.3\n"
    file.write_text(version + "INFO 12-02 10:00:10 a.py:1] # GPU blocks: 7000, # CPU blocks: 5\n")
    code, out, _ = run("budget", "--log", file, "--model", "Qwen2.5-14B", "--gpu", "H200")
    assert code == 0
    assert "7,000 blocks" in out
    assert "not computed: vLLM 0.6.3 runs the V0 engine" in out


def test_a_start_that_does_not_fit_is_compared_all_the_same(run, tmp_path):
    file = tmp_path / "server.log"
    file.write_text("vllm serve m --max-num-batched-tokens 64K\nAvailable KV cache memory: -2.14 GiB\n")
    code, out, _ = run("budget", "--log", file, "--model", "Qwen2.5-32B", "--gpu", "A100-80GB")
    assert code == 1
    assert "no-kv-memory" in out
    assert "leaves no room for a KV cache" in out
    assert "-2.14" in out


def test_a_failed_start_says_what_to_change_and_exits_with_1(run, tmp_path):
    file = tmp_path / "server.log"
    file.write_text("RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.\n")
    code, out, _ = run("budget", "--log", file)
    assert code == 1
    assert "oom-sampler" in out
    assert "lower --max-num-seqs below 1024" in out


def test_several_starts_are_listed_and_the_last_counts(read, run, tmp_path):
    text = log_of(measured("qwen2.5-14b", 512, 8192)) + log_of(measured("qwen2.5-14b", 64, 32768))
    _, found = read(text)
    assert [start["max_num_seqs"] for start in found["startups"]] == [512, 64]
    assert found["max_num_seqs"] == 64
    assert "start 2 of 2" in run("budget", "--log", tmp_path / "server.log")[1]


def test_stdin_and_gzip(read, run, monkeypatch):
    text = log_of(measured("qwen2.5-14b", 512, 8192)).encode()
    for content in (gzip.compress(text), gzip.compress(text[:900]) + gzip.compress(text[900:])):
        assert read(content)[1]["kv_cache_tokens"] == 526_576
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    code, out, _ = run("budget", "--log", "-", "--json")
    assert (code, json.loads(out)["source"], json.loads(out)["kv_cache_tokens"]) == (0, "stdin", 526_576)


BAD_FILES = {
    "empty": (b"", "the file is empty"),
    "no log": (b"Dear all,\n", "no line of a vLLM start-up"),
    "NULs": (b"\0" * 5000, "no line of a vLLM start-up"),
    "broken gzip": (gzip.compress(b"x" * 5000)[:-9], "corrupt or truncated"),
    "nonsense gzip": (b"\x1f\x8b" + b"nonsense" * 9, "corrupt or truncated"),
    "zip": (b"PK\x03\x04" + b"x" * 99, "is packed with zip"),
    "zstd": (b"\x28\xb5\x2f\xfd" + b"x" * 99, "is packed with zstd"),
}


@pytest.mark.parametrize(("content", "said"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_gets_one_message_and_exit_code_2(run, tmp_path, content, said):
    file = tmp_path / "server.log"
    file.write_bytes(content)
    code, out, err = run("budget", "--log", file)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 2
    assert "Traceback" not in err


MISTAKES = {
    "missing": (("--log", "nowhere.log"), "nowhere.log: no such file"),
    "directory": (("--log", "docs"), "is a directory"),
    "device": (("--log", "/dev/zero"), "is a device"),
    "NUL in the name": (("--log", "a\0b"), "no such file"),
    "two sources": (("--log", "a", "--metrics", "b"), "each give the pool"),
    "log and blocks": (("--log", "a", "--blocks", "9"), "each give the pool"),
    "no value": (("--log",), "--log"),
}


@pytest.mark.parametrize(("arguments", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gets_one_message_and_exit_code_2(run, arguments, said):
    code, out, err = run("budget", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_dials_and_a_gpu_need_a_model(run, tmp_path):
    file = tmp_path / "server.log"
    file.write_text("GPU KV cache size: 5,000 tokens\n")
    for arguments in (("--dials",), ("--gpu", "H200")):
        code, _, err = run("budget", "--log", file, *arguments)
        assert code == 2
        assert "--model and --gpu" in err


def test_a_bomb_of_gzip_is_read_in_pieces(run, tmp_path):
    file = tmp_path / "server.log"
    file.write_bytes(gzip.compress(b"GPU KV cache size: 5,000 tokens\n" + b"\0" * 2**27))
    tracemalloc.start()
    code, out, _ = run("budget", "--log", file, "--json")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (code, json.loads(out)["kv_cache_tokens"]) == (0, 5000)
    assert peak < 40 * 2**20


def test_a_hybrid_model_is_counted_by_its_blocks_not_by_its_tokens(run, shared_path):
    log = shared_path / "cases" / "hybrid-two-lines-disagree.log"
    model = shared_path / "cases" / "config-gdn-hybrid-explicit-head-dim.json"
    _, out, _ = run("budget", "--log", log, "--model", model, "fixed:1999:1", "--json")
    found = json.loads(out)
    assert found["kind"] == "hybrid"
    assert found["max_seqs_full_length"] == pytest.approx(247, abs=2)  # 541 by tokens


def test_a_request_larger_than_the_pool_does_not_hide_the_log(run, tmp_path):
    file = tmp_path / "server.log"
    file.write_text("GPU KV cache size: 512 tokens\n")
    code, out, _ = run("budget", "--log", file, "fixed:512:256")
    assert code == 0
    assert "512 tokens" in out
    assert "0 sequences" in out


def test_json_says_why_nothing_is_computed(read):
    text = "INFO x [a.py:1] vLLM API server version 0.6.3\nGPU KV cache size: 512 tokens\n"
    _, found = read(text, "--model", "Qwen2.5-14B", "--gpu", "H200")
    assert found["remark"].startswith("not computed: vLLM 0.6.3")
    assert "comparison" not in found
