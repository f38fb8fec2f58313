"""`maitre budget`: what it prints, the keys of its JSON, and one sentence for every mistake."""

import json

import pytest

from maitre.cli import main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as finished:
        main(["budget", *arguments])
    return finished.value.code, *capsys.readouterr()


def read(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


FITS = ("--model", "Qwen2.5-14B", "--gpu", "H200")


def test_json_has_the_keys_that_other_programs_read(capsys):
    found = read(capsys, *FITS, "--prompt-tokens", "512", "--output-tokens", "256")
    assert found["kv_bytes_per_token"] == 196_608
    assert found["fixed_bytes_per_seq"] == 0
    assert found["kind"] == "full"
    assert found["block_size"] == 16
    assert found["kv_tokens"] == (found["num_gpu_blocks"] - 1) * 16
    assert (found["max_num_seqs"], found["max_num_batched_tokens"]) == (1024, 8192)
    assert found["max_seqs"] == int((found["num_gpu_blocks"] - 1) / 40.4375)  # mean blocks of 512 + j, j = 0 … 255
    assert found["max_seqs_full_length"] < found["max_seqs"]
    assert {part["name"] for part in found["parts"]} >= {"weights", "activation peak", "KV pool"}
    assert found["source"]


def test_a_workload_or_a_reference_gives_the_lengths(capsys):
    by_spec = read(capsys, *FITS, "fixed:512:256")
    by_flags = read(capsys, *FITS, "--prompt-tokens", "512", "--output-tokens", "256")
    assert by_spec["max_seqs"] == by_flags["max_seqs"]
    assert read(capsys, *FITS, "--reference", "chat")["max_seqs"] > 0


def test_the_directory_of_the_example(capsys):
    found = read(capsys, "--model", "examples/qwen2.5-14b", "--gpu", "NVIDIA H200", "--max-num-batched-tokens", "64K")
    assert found["num_gpu_blocks"] == read(capsys, *FITS, "--max-num-batched-tokens", "65536")["num_gpu_blocks"]


def test_without_lengths_only_the_longest_is_counted(capsys):
    found = read(capsys, *FITS)
    assert found["max_seqs"] is None
    assert found["max_seqs_at_max_model_len"] == round((found["num_gpu_blocks"] - 1) / 2048, 2)


def test_without_a_gpu_there_are_the_bytes_of_a_token(capsys):
    found = read(capsys, "--model", "Qwen2.5-7B", "--kv-cache-dtype", "fp8", "--tensor-parallel-size", "2")
    assert (found["kv_bytes_per_token"], found["kind"]) == (14_336, "full")
    code, out, _ = run(capsys, "--model", "Qwen2.5-7B")
    assert code == 0
    assert "57,344 B" in out


def test_a_known_pool(capsys):
    found = read(capsys, "--blocks", "4521", "fixed:512:256")
    assert (found["kv_tokens"], found["kv_bytes_per_token"], found["max_seqs"]) == (72_320, None, 111)
    assert read(capsys, "--blocks", "4521", "--model", "Qwen2.5-14B")["kv_bytes_per_token"] == 196_608


def test_the_table_shows_every_part_and_says_what_binds(capsys):
    code, out, err = run(capsys, *FITS, "fixed:512:256")
    assert (code, err) == (0, "")
    for words in ("weights", "activation peak", "KV pool", "196,608 B a token", "sequences", "max_num_seqs 1,024"):
        assert words in out
    assert "room for all of them" in run(capsys, *FITS, "fixed:512:256", "--max-num-seqs", "64")[1]


MISTAKES = {
    "nothing": ((), "no model is given"),
    "blocks-and-gpu": (("--blocks", "100", "--gpu", "H200"), "--blocks gives the pool"),
    "zero-blocks": (("--blocks", "0"), "--blocks"),
    "one-block": (("--blocks", "1"), "1 blocks of 16 tokens make no KV pool"),
    "model-typo": (("--model", "Qwen2.5-14C", "--gpu", "H200"), "Qwen2.5-14C"),
    "gpu-typo": (("--model", "Qwen2.5-14B", "--gpu", "H2000"), "H2000"),
    "gpu-sizes": (("--model", "Qwen2.5-14B", "--gpu", "A100"), "several sizes"),
    "no-such-file": (("--model", "nowhere/config.json", "--gpu", "H200"), "nowhere/config.json: no such file"),
    "no-config-inside": (("--model", "examples", "--gpu", "H200"), "config.json: no such file"),
    "too-large": (("--model", "Qwen2.5-72B", "--gpu", "RTX 4090"), "leaves no room for a KV cache"),
    "too-long": ((*FITS, "--max-model-len", "100k"), "longer than the 32,768 positions"),
    "budget-below-seqs": (
        (*FITS, "--max-num-seqs", "64", "--max-num-batched-tokens", "32"),
        "smaller than max_num_seqs",
    ),
    "no-number": ((*FITS, "--max-num-batched-tokens", "many"), "'many' is not a number of tokens"),
    "negative-seqs": ((*FITS, "--max-num-seqs", "-5"), "--max-num-seqs"),
    "zero-seqs": ((*FITS, "--max-num-seqs", "0"), "--max-num-seqs"),
    "utilization-above-one": ((*FITS, "--gpu-memory-utilization", "1.5"), "--gpu-memory-utilization"),
    "utilization-zero": ((*FITS, "--gpu-memory-utilization", "0"), "--gpu-memory-utilization"),
    "uneven-split": ((*FITS, "--tensor-parallel-size", "3"), "cannot be shared out evenly over 3 GPUs"),
    "kv-dtype": ((*FITS, "--kv-cache-dtype", "fp4"), "fp4"),
    "dtype": ((*FITS, "--dtype", "int4"), "int4"),
    "version": ((*FITS, "--vllm-version", "new"), "'new' is not a version"),
    "old-version": ((*FITS, "--vllm-version", "0.6.3"), "V0 engine"),
    "half-a-length": ((*FITS, "--prompt-tokens", "5"), "--output-tokens"),
    "two-sources": ((*FITS, "fixed:5:5", "--prompt-tokens", "5", "--output-tokens", "5"), "either a workload"),
    "request-too-long": (("--blocks", "10", "fixed:512:256"), "a request of 768 tokens needs 48 blocks"),
    "unknown-flag": ((*FITS, "--blok-size", "16"), "--blok-size"),
}


@pytest.mark.parametrize(("arguments", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gets_one_message_and_exit_code_2(capsys, arguments, said):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("maitre: ")
    assert len(err.splitlines()) <= 2
    assert "Traceback" not in err


def config(**changes):
    base = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 256,
        "max_position_embeddings": 128,
    }
    return json.dumps(base | changes)


FILES = {
    "empty": ("", "the file is empty"),
    "truncated": (config()[:-6], "truncated"),
    "list": ("[1, 2]", "a JSON object was expected"),
    "binary": ("\0\0\0\0", "binary data"),
    "missing-field": (config(num_hidden_layers=None), "num_hidden_layers is missing"),
    "nonsense-field": (config(hidden_size=-1), "hidden_size is -1"),
    "moe": (config(architectures=["MixtralForCausalLM"], num_local_experts=8), "MixtralForCausalLM"),
    "unknown": (config(architectures=["FancyForCausalLM"]), "FancyForCausalLM"),
}


@pytest.mark.parametrize(("content", "said"), FILES.values(), ids=FILES)
def test_a_broken_config_is_named_with_what_was_expected(capsys, tmp_path, content, said):
    file = tmp_path / "config.json"
    file.write_text(content)
    code, out, err = run(capsys, "--model", str(tmp_path), "--gpu", "H200")
    assert (code, out) == (2, "")
    assert str(file) in err
    assert said in err


def test_help_lists_vllms_own_flags(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for flag in ("--max-num-seqs", "--max-num-batched-tokens", "--kv-cache-dtype", "--blocks", "--prompt-tokens"):
        assert flag in out


def test_every_public_config_through_the_verb(capsys, shared_path):
    wrong, num_cases = [], 0
    for case in json.loads((shared_path / "cases" / "cases.json").read_text("utf-8")):
        configs = [name for name in case["files"] if name.endswith(".json")]
        if case["kind"] != "model-config" or not configs:
            continue
        given, flags = case["given"], ["--model", str(shared_path / "cases" / configs[0])]
        flags += ["--kv-cache-dtype", "fp8"] if given["kv_dtype_bytes"] == 1 else []
        flags += ["--tensor-parallel-size", str(given["tensor_parallel_size"])]
        flags += ["--in-flight-tokens", str(given["in_flight_tokens"])] if "in_flight_tokens" in given else []
        flags += ["--max-model-len", str(given["max_model_len"])] if "max_model_len" in given else []
        found, num_cases = read(capsys, *flags), num_cases + 1
        for key, expected in case["expect"].items():
            options = expected.get("any_of", []) if isinstance(expected, dict) else [expected]
            is_in_range = (
                isinstance(expected, dict) and "min" in expected and expected["min"] <= found[key] <= expected["max"]
            )
            wrong += [] if found[key] in options or is_in_range else [(case["id"], key, found[key])]
    assert not wrong
    assert num_cases >= 6


def test_without_the_hybrid_manager_a_window_keeps_every_token(capsys, shared_path):
    model = ("--model", str(shared_path / "cases" / "config-sliding-half-the-layers-fp8.json"))
    found = read(capsys, *model, "--disable-hybrid-kv-cache-manager")
    assert found["fixed_bytes_per_seq"] == 0
    assert found["kv_bytes_per_token"] > read(capsys, *model)["kv_bytes_per_token"]
    code, out, _ = run(capsys, *model)
    assert code == 0
    assert "a sequence whatever its length" in out


def test_dials_show_what_a_larger_token_budget_costs(capsys):
    found = read(capsys, *FITS, "--dials", "--max-num-seqs", "256")
    pools = {cell["max_num_batched_tokens"]: cell["kv_tokens"] for cell in found["pool_by_dials"] if cell["is_present"]}
    assert pools == {8192: found["kv_tokens"]}
    row = [cell["kv_tokens"] for cell in found["pool_by_dials"] if cell["max_num_seqs"] == 256]
    assert row == sorted(row, reverse=True)
    assert row[0] > row[-1]
    assert "512,224" in run(capsys, *FITS, "--dials", "--max-num-seqs", "256", "--max-model-len", "8192")[1]
