"""Formats of published traces: BurstGPT, ServeGen, conversations with lengths."""

import json
from pathlib import Path

import pytest

from maitre.errors import InputError
from maitre.workload import load_workload


def load(tmp_path: Path, content: str, name: str = "trace.csv", **options):
    path = tmp_path / name
    path.write_text(content)
    return load_workload(str(path), **options)


@pytest.mark.parametrize(
    ("header", "more"),
    [
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", ""),
        ("Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type", "7,2.5,"),
    ],
)
def test_burstgpt_in_both_widths(tmp_path: Path, header: str, more: str):
    rows = ["5,{}ChatGPT,472,18,490,Conversation log", "45,{}GPT-4,1087,230,1317,API log", "60,{}GPT-4,9,0,9,API log"]
    workload = load(tmp_path, "\n".join([header, *(row.format(more) for row in rows)]))
    assert "BurstGPT trace" in workload.source
    assert workload.prompt_tokens.tolist() == [472, 1087]
    assert workload.output_tokens.tolist() == [18, 230]
    assert workload.arrival_s.tolist() == [0, 40]
    assert (workload.latency_s is not None) == bool(more)
    assert workload.num_dropped == {"output_tokens zero": 1}


def test_requests_that_servegen_generated_are_a_table(tmp_path: Path):
    workload = load(tmp_path, "request_id,timestamp,input_tokens,output_tokens\n0,0.5,30,9\n1,1.5,40,8\n")
    assert workload.prompt_tokens.tolist() == [30, 40]
    assert workload.arrival_s.tolist() == [0, 1]


def conversation(*turns):
    return {"id": "c", "conversations": [{"from": who, "value": "…", "num_tokens": count} for who, count in turns]}


def test_every_answer_of_a_conversation_is_a_request_with_all_before_as_its_prompt(tmp_path: Path):
    records = [
        conversation(("human", 10), ("gpt", 20), ("human", 5), ("gpt", 7)),
        conversation(("system", 100), ("human", 10), ("gpt", 3)),
    ]
    for content in (json.dumps(records), "\n".join(map(json.dumps, records))):
        workload = load(tmp_path, content, "sharegpt.json")
        assert workload.prompt_tokens.tolist() == [10, 35, 110]
        assert workload.output_tokens.tolist() == [20, 7, 3]


def test_an_answer_after_a_turn_of_unknown_length_is_dropped(tmp_path: Path):
    records = [conversation(("human", 10), ("gpt", 20), ("human", None), ("gpt", 7))]
    workload = load(tmp_path, json.dumps(records), "sharegpt.json")
    assert workload.prompt_tokens.tolist() == [10]
    assert workload.num_dropped == {"prompt_tokens missing": 1}


def test_lengths_beside_the_conversation_are_a_table(tmp_path: Path):
    record = conversation(("human", None), ("gpt", None)) | {"prompt_len": 30, "output_len": 9}
    workload = load(tmp_path, json.dumps([record]), "sharegpt.json")
    assert (workload.prompt_tokens.tolist(), workload.output_tokens.tolist()) == ([30], [9])


def test_texts_without_lengths_are_refused_with_what_to_add(tmp_path: Path):
    with pytest.raises(InputError, match="without lengths") as caught:
        load(tmp_path, json.dumps([conversation(("human", None), ("gpt", None))]), "sharegpt.json")
    assert "num_tokens" in caught.value.hint


WINDOWS = {
    "0": {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{5: 1.0}", "reason_ratio": "{0.5: 1.0}"},
    "21600": {"input_tokens": "{1000: 1.0}", "output_tokens": "{50: 0.5, 0: 0.5}"},
    "43200": {"input_tokens": "{}", "output_tokens": "{}"},
}


def test_requests_are_drawn_from_the_distributions_of_a_servegen_client(tmp_path: Path):
    workload = load(tmp_path, json.dumps(WINDOWS), "chunk-7-dataset.json", num_requests=4000, seed=3)
    assert workload.num_requests == 4000
    assert (workload.prompt_tokens == 1000).mean() == pytest.approx(0.5, abs=0.05)
    assert set(workload.output_tokens[workload.prompt_tokens == 1000].tolist()) == {1, 50}
    assert (workload.prompt_tokens == 20).sum() / (workload.prompt_tokens <= 20).sum() == pytest.approx(0.75, abs=0.05)
    assert "2 windows weighted alike" in workload.source
    again = load(tmp_path, json.dumps(WINDOWS), "chunk-7-dataset.json", num_requests=4000, seed=3)
    assert again.prompt_tokens.tolist() == workload.prompt_tokens.tolist()


def test_windows_of_a_servegen_client_count_by_the_rates_beside_it(tmp_path: Path):
    (tmp_path / "chunk-7-trace.csv").write_text("0,1.5,1,Gamma,1,1\n600,1.5,1,Gamma,1,1\n21600,1,1,Weibull,1,1\n")
    workload = load(tmp_path, json.dumps(WINDOWS), "chunk-7-dataset.json", num_requests=4000)
    assert (workload.prompt_tokens == 1000).mean() == pytest.approx(0.25, abs=0.04)
    assert "by their rates" in workload.source


@pytest.mark.parametrize(
    "window",
    [
        {"input_tokens": "{}", "output_tokens": "{}"},
        {"input_tokens": "{10: 1.0}", "output_tokens": ["{5: 1.0}"]},
        {"input_tokens": "{10: 1.0}", "output_tokens": "{5: 1e999}"},
        {"input_tokens": "{10: 1.0}", "output_tokens": "{5: 1.2.3}"},
        {"input_tokens": "{10: 1.0}", "output_tokens": "{99999999999999999999: 1.0}"},
    ],
)
def test_a_servegen_client_without_lengths_is_refused(tmp_path: Path, window: dict[str, object]):
    head = {"0": {"input_tokens": "{}", "output_tokens": "{}"}}
    with pytest.raises(InputError, match="no window has both"):
        load(tmp_path, json.dumps(head | {"600": window, "9" * 5000: window}), "chunk-7-dataset.json")


def test_a_conversation_of_more_tokens_than_can_be_counted_is_dropped(tmp_path: Path):
    def turns(*lengths: int) -> dict[str, object]:
        return {"conversations": [{"from": ("human", "gpt")[i % 2], "num_tokens": n} for i, n in enumerate(lengths)]}

    workload = load(tmp_path, json.dumps([turns(2**63 - 1, 7, 5, 7), turns(5, 7)]))
    assert (workload.prompt_tokens.tolist(), workload.output_tokens.tolist()) == ([5], [7])
    assert workload.num_dropped == {"prompt_tokens over 10 million": 2}
