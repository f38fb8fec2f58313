"""Recordings: two files that belong together, or one sentence that names the file and the field."""

import copy
import json
import zipfile
from io import BytesIO

import numpy as np
import pytest

from maitre.errors import InputError
from maitre.recording import load_recording, recorded_workload

COLUMNS = [
    *("num_decodes", "decode_context_tokens", "num_prefills", "prefill_tokens", "prefill_attention_pairs"),
    *("num_preemptions", "output_end_s"),
]
STEPS = [[0, 0, 2, 8, 20, 0, 0.5], [2, 10, 0, 0, 0, 0, 0.75], [1, 6, 0, 0, 0, 0, 1.0]]
RECORDING = {
    "schema": "maitre-recording-1",
    "gpu": "NVIDIA H200 (141 GB, SXM)",
    "vllm_version": "0.26.0",
    "model": "two requests",
    "server": {"max_num_seqs": 2, "max_num_batched_tokens": 8, "max_model_len": 64},
    "num_gpu_blocks": 9,
    "workload": "by hand",
    "requests": {"arrival_s": [0.0, 0.0], "prompt_tokens": [4, 4], "output_tokens": [2, 3]},
    "step_columns": COLUMNS,
    "cells": [
        {"max_num_seqs": 2, "max_num_batched_tokens": 8, "steps": "a", "num_steps": 3, "num_preemptions": 0,
         "engine_s": 1.0},
    ],
}  # fmt: skip


@pytest.fixture
def write(tmp_path):
    """Writes the two files of a recording, with other values at the paths that are given; returns the .json's path."""

    def write_recording(changes=(), steps=STEPS, name="a", **more):
        content = copy.deepcopy(RECORDING)
        for (*parents, last), value in dict(changes).items():
            place = content
            for key in parents:
                place = place[key]
            place[last] = value
        path = tmp_path / "r.json"
        path.write_text(json.dumps(content))
        np.savez(
            path.with_suffix(".npz"), **{name: np.array(steps)} | {key: np.array(rows) for key, rows in more.items()}
        )
        return path

    return write_recording


def complaint(path):
    with pytest.raises(InputError) as caught:
        load_recording(path)
    assert caught.value.hint
    assert "\n" not in caught.value.args[0]
    return caught.value.args[0]


def test_a_recording_is_read_with_the_steps_of_its_cells(write):
    recording, (run,) = load_recording(write())
    assert (str(run.recorded.cell), recording.block_size) == ("2x8", 16)
    assert run.columns["decode_context_tokens"].tolist() == [0, 10, 6]
    assert run.steps_s.tolist() == [0.5, 0.25, 0.25]


REQUEST_NAMES = [
    *("arrival_s", "first_scheduled_s", "first_token_s", "last_token_s", "num_preemptions", "num_cached_tokens"),
]
OVER_HTTP = {
    ("step_columns",): [*COLUMNS, "schedule_start_s", "num_running", "num_waiting", "num_free_blocks"],
    ("request_columns",): REQUEST_NAMES,
    ("cells", 0, "requests"): "b",
}
MORE_STEPS = [[*row, row[-1] - 0.25, 2, 0, 6] for row in STEPS]
REQUESTS = [[-0.125, 0.25, 0.5, 0.75, 0, 0], [0.0, 0.25, 0.5, 1.0, 0, 4]]


def test_runs_over_http_have_request_times_of_their_own(write):
    _, (run,) = load_recording(write(OVER_HTTP, steps=MORE_STEPS, b=REQUESTS))
    assert run.requests["arrival_s"].tolist() == [-0.125, 0.0]
    assert run.requests["num_cached_tokens"].tolist() == [0, 4]
    assert load_recording(write())[1][0].requests is None


@pytest.mark.parametrize(
    ("changes", "steps", "requests", "said"),
    [
        ({}, MORE_STEPS, REQUESTS[:1], "b is 1 × 6, 2 requests × 6 columns were expected"),
        ({}, MORE_STEPS, [[*REQUESTS[0][:-1], float("nan")], REQUESTS[1]], "b has values that are no numbers"),
        ({("request_columns",): REQUEST_NAMES[:-1]}, MORE_STEPS, REQUESTS, "request_columns lacks num_cached_tokens"),
        ({("step_columns",): COLUMNS}, STEPS, REQUESTS, "step_columns lacks schedule_start_s, num_running"),
        ({("cells", 0, "requests"): "c"}, MORE_STEPS, REQUESTS, "c is not a file in the archive"),
    ],
)
def test_request_times_that_do_not_fit_are_refused(write, changes, steps, requests, said):
    path = write(OVER_HTTP | changes, steps=steps, b=requests)
    assert said in complaint(path)


def test_requests_that_are_all_there_at_once_have_no_arrivals(write):
    at_once, _ = load_recording(write())
    assert recorded_workload(at_once).arrival_s is None
    over_time, _ = load_recording(write({("requests", "arrival_s"): [0.0, 1.5]}))
    assert recorded_workload(over_time).arrival_s.tolist() == [0.0, 1.5]


WRONG_FIELDS = {
    "schema": (("schema",), "maitre-recording-9", "schema: "),
    "no-gpu": (("gpu",), None, "gpu: "),
    "null-block-only": (("num_gpu_blocks",), 1, "num_gpu_blocks: "),
    "block-size": (("block_size",), 0, "block_size: "),
    "no-cells": (("cells",), [], "cells: "),
    "dial": (("cells", 0, "max_num_seqs"), 0, "cells.0.max_num_seqs: "),
    "no-steps": (("cells", 0, "num_steps"), 0, "cells.0.num_steps: "),
    "utilization": (("server", "gpu_memory_utilization"), 7, "server.gpu_memory_utilization: "),
    "fraction": (("requests", "prompt_tokens", 0), 1.5, "requests.prompt_tokens.0: "),
    "huge": (("requests", "prompt_tokens", 0), 2**70, "requests.prompt_tokens: "),
    "zero": (("requests", "prompt_tokens", 0), 0, "requests: "),
    "one-short": (("requests", "output_tokens"), [2], "requests: "),
    "nobody": (("requests",), {"arrival_s": [], "prompt_tokens": [], "output_tokens": []}, "requests: "),
    "back-in-time": (("requests", "arrival_s"), [2.0, 1.0], "requests: "),
    "nan-arrival": (("requests", "arrival_s"), [0.0, float("nan")], "requests.arrival_s: "),
    "hashes-only": (("requests", "prefix_hashes"), [[1], [1]], "requests: "),
    "column-missing": (("step_columns", 6), "ended", "step_columns: no output_end_s"),
}


@pytest.mark.parametrize(("place", "value", "said"), WRONG_FIELDS.values(), ids=WRONG_FIELDS)
def test_a_wrong_field_is_named_with_its_file(write, place, value, said):
    path = write({place: value})
    message = complaint(path)
    assert message.startswith(f"{path}: ")
    assert said in message


@pytest.mark.parametrize("content", ["", "[]", "3", "{}", '{"schema": "maitre-rec', "\0"])
def test_a_json_file_that_is_no_recording_is_named(write, content):
    path = write()
    path.write_text(content)
    assert complaint(path).startswith(str(path))


WRONG_STEPS = {
    "another-cell": ({"name": "b"}, "a is not a file in the archive"),
    "a-row-less": ({"steps": STEPS[:2]}, "a is 2 × 7, 3 steps × 7 columns were expected"),
    "a-column-less": ({"steps": [row[1:] for row in STEPS]}, "a is 3 × 6"),
    "flat": ({"steps": [1, 2, 3]}, "a is 3, "),
    "texts": ({"steps": [["x"] * 7] * 3}, "a is no array of numbers"),
    "nan": ({"steps": [*STEPS[:2], [float("nan")] * 7]}, "no numbers"),
    "back-in-time": ({"steps": STEPS[::-1]}, "times that go back"),
    "no-time": ({"steps": [[0] * 7] * 3}, "times"),
}


@pytest.mark.parametrize(("changes", "said"), WRONG_STEPS.values(), ids=WRONG_STEPS)
def test_steps_of_another_shape_are_refused(write, changes, said):
    path = write(**changes)
    message = complaint(path)
    assert message.startswith(f"{path.with_suffix('.npz')}: ")
    assert said in message


@pytest.mark.parametrize(
    "damage", ["missing", "empty", "truncated", "text", "noise", "version", "no-array", "too-large"]
)
def test_a_damaged_step_file_is_named(write, damage):
    path = write()
    steps = path.with_suffix(".npz")
    content = steps.read_bytes()
    match damage:
        case "missing":
            steps.unlink()
        case "empty":
            steps.write_bytes(b"")
        case "truncated":
            steps.write_bytes(content[: len(content) // 2])
        case "text":
            steps.write_text("a,b\n1,2\n")
        case "noise":
            steps.write_bytes(content[:200] + b"\xff" * 40 + content[240:])
        case "version":
            at = content.rindex(b"PK\1\2") + 6  # the version that is needed to read the last member
            steps.write_bytes(content[:at] + b"\xcd" + content[at + 1 :])
        case "no-array":
            write_member(steps, b"1,2,3")
        case "too-large":
            write_member(steps, header_of_an_array((10**14,)))
    assert complaint(path).startswith(f"{steps}: ")


def write_member(path, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", content)


def header_of_an_array(shape):
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return header.getvalue()
