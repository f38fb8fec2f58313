"""vLLM's defaults by version, against the source of each, and the settings that it refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import UnsupportedError, UsageError
from maitre.gpus import find_gpu
from maitre.records import Cell, ServerConfig
from maitre.vllm import (
    capture_sizes,
    check_server,
    default_cell,
    default_gpu_memory_utilization,
    keeps_large_blocks_whole,
    num_cuda_graphs,
    parse_version,
    sampler_bytes_per_logit,
    subtracts_cuda_graphs,
    uses_v2_model_runner,
)

SERVER = ServerConfig(model="m", max_model_len=4096, max_num_seqs=64, max_num_batched_tokens=2048)
VERSIONS = ["0.8.0", "0.8.5", "0.9.2", "0.10.2", "0.11.1", "0.19.1", "0.20.2", "0.26.0", "0.28.0", "0.33.0"]


@pytest.mark.parametrize(
    ("version", "gpu", "context", "cell"),
    [
        ("0.8.0", "A10", "server", (1024, 2048)),
        ("0.8.4", "A10", "server", (256, 2048)),
        ("0.8.4", "H100", "server", (1024, 8192)),
        ("0.8.4", "A100-80GB", "server", (256, 2048)),
        ("0.8.5", "A100-80GB", "server", (1024, 8192)),
        ("0.9.0", "A100-80GB", "server", (256, 2048)),
        ("0.26.0", "A100-80GB", "llm", (256, 8192)),
        ("0.26.0", "RTX 4090", "server", (256, 2048)),
        ("0.26.0", "H200", "server", (1024, 8192)),
        ("0.26.0", "H200", "llm", (1024, 16384)),
        ("0.26.0", "B200", "server", (1024, 8192)),
        ("0.28.0", "B200", "server", (1024, 16384)),
        ("0.28.0", "MI300X", "server", (1024, 16384)),
        ("0.28.0", "H200", "server", (1024, 8192)),
    ],
)
def test_default_cells(version, gpu, context, cell):
    card = find_gpu(gpu)
    found = default_cell(version, card.name, card.memory_bytes, 32768, context)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == cell


def test_a_small_budget_of_the_user_lowers_the_default_of_the_other_dial():
    h200 = ("NVIDIA H200", find_gpu("H200").memory_bytes, 4096)
    assert default_cell("0.26.0", *h200, max_num_batched_tokens=512) == Cell(
        max_num_seqs=512, max_num_batched_tokens=512
    )
    assert default_cell("0.26.0", *h200, max_num_seqs=1).max_num_batched_tokens == 4096
    assert default_cell("0.10.1", *h200, max_num_batched_tokens=512).max_num_seqs == 1024


def test_a_short_model_caps_the_defaulted_budget():
    assert default_cell("0.26.0", "NVIDIA L4", 2**34, 4).max_num_batched_tokens == 256 * 4


def test_gb10_is_small_from_033_on():
    big = 120 * 2**30
    assert default_cell("0.33.0", "NVIDIA GB10", big, 4096).max_num_seqs == 256
    assert default_cell("0.32.0", "NVIDIA GB10", big, 4096).max_num_seqs == 1024


def test_memory_utilization():
    assert [default_gpu_memory_utilization(v) for v in ("0.8.0", "0.19.1", "0.20.0", "0.33.0")] == [
        0.9,
        0.9,
        0.92,
        0.92,
    ]


@pytest.mark.parametrize(
    ("version", "seqs", "tokens", "count", "largest"),
    [
        ("0.8.5", 16, 8192, 67, 512),
        ("0.10.2", 16, 8192, 7, 32),
        ("0.26.0", 16, 8192, 7, 32),
        ("0.26.0", 256, 8192, 51, 512),
        ("0.26.0", 1024, 8192, 51, 512),
        ("0.26.0", 100, 8192, 28, 200),
        ("0.26.0", 64, 100, 16, 100),
        ("0.29.0", 100, 8192, 29, 200),
    ],
)
def test_capture_sizes(version, seqs, tokens, count, largest):
    sizes = capture_sizes(version, Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens))
    assert (len(sizes), sizes[-1]) == (count, largest)


def test_capture_sizes_go_further_on_datacentre_blackwell():
    cell = Cell(max_num_seqs=1024, max_num_batched_tokens=16384)
    assert capture_sizes("0.28.0", cell, datacentre_blackwell=True)[-1] == 1024
    assert capture_sizes("0.27.0", cell, datacentre_blackwell=True)[-1] == 512


@given(st.sampled_from(VERSIONS), st.integers(1, 4096), st.integers(1, 70000))
def test_capture_sizes_are_ascending_and_within_the_budget(version, seqs, tokens):
    sizes = capture_sizes(version, Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens))
    assert list(sizes) == sorted(set(sizes))
    assert sizes
    assert sizes[-1] <= tokens


@given(st.sampled_from(VERSIONS), st.sampled_from(["H200", "A10"]), st.integers(1, 200_000))
def test_vllm_starts_with_its_own_defaults(version, gpu, length):
    card = find_gpu(gpu)
    cell = default_cell(version, card.name, card.memory_bytes, length)
    if parse_version(version) >= (0, 10, 2):
        check_server(SERVER.model_copy(update={"vllm_version": version, "max_model_len": length}).at(cell))


def test_model_runners():
    assert not uses_v2_model_runner("0.21.0", "Qwen3ForCausalLM")
    assert uses_v2_model_runner("0.22.1", "Qwen3ForCausalLM")
    assert not uses_v2_model_runner("0.24.0", "Qwen2ForCausalLM")
    assert uses_v2_model_runner("0.24.0", "LlamaForCausalLM")
    assert uses_v2_model_runner("0.25.1", "Qwen2ForCausalLM")


@pytest.mark.parametrize(
    ("version", "architecture", "subtracted"),
    [
        ("0.19.1", "Qwen2ForCausalLM", False),
        ("0.20.2", "Qwen2ForCausalLM", True),
        ("0.24.0", "Qwen2ForCausalLM", True),
        ("0.24.0", "Qwen3ForCausalLM", False),
        ("0.26.0", "Qwen2ForCausalLM", False),
        ("0.33.0", "Qwen2ForCausalLM", True),
    ],
)
def test_when_the_graphs_come_out_of_the_pool(version, architecture, subtracted):
    assert subtracts_cuda_graphs(version, architecture) is subtracted


@pytest.mark.parametrize(
    ("version", "num_bytes"),
    [("0.19.1", 14), ("0.22.1", 14), ("0.25.1", 6), ("0.26.0", 2), ("0.27.1", 6), ("0.28.0", 2)],
)
def test_what_the_sampler_holds_for_each_logit(version, num_bytes):
    assert sampler_bytes_per_logit(version, "Qwen2ForCausalLM", 2) == num_bytes


def test_graphs_are_piecewise_and_full():
    cell = Cell(max_num_seqs=256, max_num_batched_tokens=8192)
    assert num_cuda_graphs("0.26.0", cell) == 51 + 35  # as a public start-up log of vLLM says
    assert num_cuda_graphs("0.10.2", cell) == 67


def test_weights_are_loaded_in_whole_blocks_from_022_on():
    assert keeps_large_blocks_whole("0.22.1")
    assert not keeps_large_blocks_whole("0.19.1")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.26.0", (0, 26, 0)),
        ("v0.11.1rc1", (0, 11, 1)),
        ("0.14.0rc2+cu130", (0, 14, 0)),
        ("0.9.0.1", (0, 9, 0)),
        ("0.8.5.post1", (0, 8, 5)),
        ("0.26", (0, 26, 0)),
        ("1.0.0", (1, 0, 0)),
    ],
)
def test_versions(text, version):
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "abc", "26", "0.26.0 or so", "0.26.0/1"])
def test_no_version(text):
    with pytest.raises(UsageError):
        parse_version(text)


def test_the_v0_engine_is_not_covered():
    with pytest.raises(UnsupportedError, match=r"0\.7\.3"):
        parse_version("0.7.3")


@pytest.mark.parametrize(
    ("changes", "positions", "said"),
    [
        ({"max_num_seqs": 4096}, None, "max_num_batched_tokens 2,048 is smaller than max_num_seqs 4,096"),
        ({"long_prefill_token_threshold": 5000, "vllm_version": "0.28.0"}, None, "long_prefill_token_threshold 5,000"),
        ({}, 2048, "max_model_len 4,096 is longer than the 2,048 positions"),
    ],
)
def test_settings_that_vllm_refuses(changes, positions, said):
    with pytest.raises(UsageError) as caught:
        check_server(SERVER.model_copy(update=changes), positions)
    assert said in str(caught.value)
    assert caught.value.hint


def test_settings_that_vllm_accepts():
    check_server(SERVER, 4096)
    check_server(SERVER.model_copy(update={"long_prefill_token_threshold": 5000, "vllm_version": "0.26.0"}))
