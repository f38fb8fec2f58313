"""The workload as the benchmark reads it: the same pairs of lengths, token for token."""

import csv
import json

import pytest

from maitre.errors import SystemFailure
from maitre.records import Workload
from maitre.trial.bench_dataset import write_dataset

VOCABULARY = 2048


def make_workload(pairs, **more):
    prompts, outputs = zip(*pairs, strict=True)
    return Workload(name="w", source="by hand", prompt_tokens=list(prompts), output_tokens=list(outputs), **more)


def read_conversations(dataset):
    """Token ids of prompt and answer, as the dataset's own tokenizer counts them."""
    vocabulary = json.loads((dataset.tokenizer_path / "tokenizer.json").read_text())["model"]["vocab"]
    rows = json.loads(dataset.path.read_text())
    turns = [[turn["value"].split() for turn in row["conversations"]] for row in rows]
    return [([vocabulary[word] for word in prompt], [vocabulary[word] for word in answer]) for prompt, answer in turns]


def test_short_requests_keep_their_own_pairs_of_lengths_and_prompts_are_all_different(tmp_path):
    pairs = [(4, 4), (1024, 1024), (17, 300), (900, 5)]
    dataset = write_dataset(make_workload(pairs), tmp_path / "bench", VOCABULARY, seed=3)
    assert (dataset.name, dataset.notes) == ("sharegpt", ())
    conversations = read_conversations(dataset)
    assert [(len(prompt), len(answer)) for prompt, answer in conversations] == pairs
    assert len({prompt[0] for prompt, _ in conversations}) == len(pairs)  # no two share a prefix
    assert all(0 <= token < VOCABULARY for prompt, _ in conversations for token in prompt)


def test_shared_prefixes_are_shared(tmp_path):
    workload = make_workload([(40, 5), (40, 5)], prefix_hashes=[[1, 2], [1, 3]], prefix_block_tokens=16)
    (first, _), (second, _) = read_conversations(write_dataset(workload, tmp_path, VOCABULARY, seed=0))
    assert first[:16] == second[:16]
    assert first[16] != second[16]


@pytest.mark.parametrize("pair", [(3, 9), (9, 3), (1025, 4), (1024, 1025)])
def test_one_request_that_sharegpt_would_drop_makes_it_burstgpt(tmp_path, pair):
    pairs = [(20, 30), pair]
    dataset = write_dataset(make_workload(pairs), tmp_path, VOCABULARY, seed=0)
    assert dataset.name == "burstgpt"
    assert "pandas" in dataset.notes[0]
    with dataset.path.open() as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["Request tokens"]), int(row["Response tokens"])) for row in rows] == pairs
    assert {row["Model"] for row in rows} == {"GPT-4"}  # the only one that vLLM reads


def test_what_is_lost_is_said(tmp_path):
    more = {"prefix_hashes": [[1], [1]], "prefix_block_tokens": 16, "arrival_s": [0.0, 1.0]}
    notes = write_dataset(make_workload([(5000, 9), (5000, 9)], **more), tmp_path, VOCABULARY, seed=0).notes
    assert [any(word in note for note in notes) for word in ("burstgpt is used", "prefixes", "arrival")] == [True] * 3


def test_the_flags_name_every_request_and_never_the_random_dataset(tmp_path):
    dataset = write_dataset(make_workload([(20, 30)] * 7), tmp_path, VOCABULARY, seed=0)
    bench, script = dataset.flags(7, is_script=False), dataset.flags(7, is_script=True)
    assert bench == {
        "--tokenizer": str(tmp_path / "tokenizer"), "--dataset-name": "sharegpt",
        "--dataset-path": str(tmp_path / "sharegpt.json"), "--num-prompts": "7", "--disable-detokenize": None,
    }  # fmt: skip
    assert script == {
        "--tokenizer": str(tmp_path / "tokenizer"),
        "--dataset": str(tmp_path / "sharegpt.json"),
        "--num-prompts": "7",
    }


def test_a_disk_that_refuses_is_said(tmp_path):
    (tmp_path / "bench").write_text("a file where the folder should be")
    with pytest.raises(SystemFailure, match="cannot be written"):
        write_dataset(make_workload([(20, 30)]), tmp_path / "bench", VOCABULARY, seed=0)
