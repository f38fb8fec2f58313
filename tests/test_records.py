"""Records: frozen, strict about keys, and arrays that nobody can change and that hold the numbers that were given."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from maitre.records import (
    Attainment,
    Cell,
    KvBudget,
    ServerConfig,
    SteadyWindow,
    TargetAttainment,
    Trial,
    Workload,
)

REQUESTS = {"name": "w", "source": "by hand", "prompt_tokens": [3, 5], "output_tokens": [2, 4]}


def test_a_record_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        Cell(max_num_seqs=1, max_num_batched_tokens=2).max_num_seqs = 3


def test_a_key_that_a_record_does_not_know_is_refused():
    with pytest.raises(ValidationError, match="num_prompts"):
        Workload(**REQUESTS, num_prompts=2)


def test_arrays_are_read_only_copies():
    lengths = np.array([3, 5])
    workload = Workload(**REQUESTS | {"prompt_tokens": lengths})
    lengths[0] = 99
    assert workload.prompt_tokens.tolist() == [3, 5]
    with pytest.raises(ValueError, match="read-only"):
        workload.prompt_tokens[0] = 1


WRONG = {
    "fraction": ("prompt_tokens", [3.5, 5], "a fraction"),
    "nan-length": ("prompt_tokens", [float("nan"), 5], "NaN"),
    "more-than-64-bits": ("prompt_tokens", [2**64, 5], "flat list of numbers"),
    "unsigned-64-bits": ("prompt_tokens", [2**63, 5], "64 bits"),
    "huge-float": ("prompt_tokens", [-1e30, 5], "64 bits"),
    "dict": ("prompt_tokens", {"a": 1}, "flat list of numbers"),
    "texts": ("prompt_tokens", ["3", "5"], "flat list of numbers"),
    "nothing": ("prompt_tokens", None, "flat list of numbers"),
    "one-number": ("prompt_tokens", 3, "flat list of numbers"),
    "nested": ("prompt_tokens", [[3, 5]], "flat list of numbers"),
    "ragged": ("prompt_tokens", [[3], [5, 6]], "flat list of numbers"),
    "zero-length": ("output_tokens", [0, 4], "at least one prompt token and one output token"),
    "no-requests": ("prompt_tokens", [], "entries"),
    "too-few": ("output_tokens", [2], "output_tokens has 1 entries, prompt_tokens has 2"),
    "short-arrivals": ("arrival_s", [0.0], "arrival_s has 1 entries"),
    "nan-arrival": ("arrival_s", [0.0, float("nan")], "NaN"),
    "endless-arrival": ("arrival_s", [0.0, float("inf")], "infinity"),
    "arrival-that-goes-back": ("arrival_s", [1.0, 0.5], "must not decrease"),
    "short-latencies": ("latency_s", [1.0], "latency_s has 1 entries"),
    "hashes-without-a-chunk-size": ("prefix_hashes", [[1], [2]], "go together"),
    "chunk-size-without-hashes": ("prefix_block_tokens", 16, "go together"),
}


@pytest.mark.parametrize(("field", "value", "said"), WRONG.values(), ids=WRONG)
def test_a_workload_that_makes_no_sense_is_refused(field, value, said):
    with pytest.raises(ValidationError, match=said):
        Workload(**REQUESTS | {field: value})


def test_no_requests_at_all_are_refused():
    with pytest.raises(ValidationError, match="no requests"):
        Workload(**REQUESTS | {"prompt_tokens": [], "output_tokens": []})


LENGTHS = st.lists(st.integers(1, 2**40), min_size=1, max_size=20)


@given(LENGTHS, st.booleans())
def test_a_workload_survives_being_stored(lengths, timed):
    arrivals = np.cumsum(np.ones(len(lengths))) / 3 if timed else None
    workload = Workload(name="w", source="s", prompt_tokens=lengths, output_tokens=lengths, arrival_s=arrivals)
    again = Workload.model_validate_json(workload.model_dump_json())
    assert again.model_dump() == workload.model_dump()
    assert again.prompt_tokens.tolist() == lengths
    assert again.total_tokens == 2 * sum(lengths)


def test_whole_numbers_may_be_written_as_floats():
    assert Workload(**REQUESTS | {"prompt_tokens": [3.0, 5.0]}).prompt_tokens.dtype == np.int64


def test_a_server_is_turned_to_a_cell_and_keeps_the_rest():
    server = ServerConfig(model="m", max_model_len=4096, max_num_seqs=8, max_num_batched_tokens=512, watermark=0.1)
    turned = server.at(Cell(max_num_seqs=16, max_num_batched_tokens=1024))
    assert str(turned.cell) == "16x1024"
    assert turned == server.model_copy(update={"max_num_seqs": 16, "max_num_batched_tokens": 1024})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_num_seqs", 0), ("max_num_batched_tokens", 0), ("max_model_len", 0), ("block_size", 0)),
        *(("gpu_memory_utilization", 0), ("gpu_memory_utilization", 1.1), ("watermark", 1), ("watermark", -0.1)),
        *(("tensor_parallel_size", 0), ("long_prefill_token_threshold", -1), ("scheduling_policy", "lifo")),
    ],
)
def test_settings_out_of_range_are_refused(field, value):
    good = {"model": "m", "max_model_len": 4096, "max_num_seqs": 8, "max_num_batched_tokens": 512}
    with pytest.raises(ValidationError, match=field):
        ServerConfig(**good | {field: value})


def test_the_null_block_holds_no_tokens():
    assert KvBudget(kv_bytes_per_token=None, num_gpu_blocks=4521, block_size=16, source="").kv_tokens == 72_320


def test_a_trial_of_the_first_version_is_read_as_it_was_stored(make_trial):
    later = {"cut_short", "tpot_s", "steady", "attainment", "client_ttft_s", "client_itl_s"}
    stored = make_trial(128, 8192, 10_000.0).model_dump(mode="json", exclude=later)
    trial = Trial.model_validate_json(json.dumps(stored))
    assert trial.model_dump(mode="json", include=set(stored)) == stored
    assert {name: getattr(trial, name) for name in later} == dict.fromkeys(later) | {"cut_short": False}


def test_a_trial_with_all_its_figures_survives_being_stored(make_trial):
    window = SteadyWindow(
        rule="r", begin_s=1, end_s=9, total_tokens_per_s=5, total_tokens_per_s_low=4, total_tokens_per_s_high=6,
        num_batches=8, lag1_autocorrelation=-0.1,
    )  # fmt: skip
    target = TargetAttainment(target="ttft_p95=500ms", value_s=0.4, share=0.97, met=True)
    attainment = Attainment(
        met=True, num_attaining=97, share=0.97, share_low=0.92, share_high=0.99, goodput_rps=9.7, by_target=(target,)
    )
    trial = make_trial(128, 8192, 10_000.0, steady=window, attainment=attainment)
    assert Trial.model_validate_json(trial.model_dump_json()) == trial
