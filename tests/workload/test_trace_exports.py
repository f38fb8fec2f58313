"""The traffic as a trace for load generators: what they replay is what was measured."""

import json
from pathlib import Path

import pytest

from maitre.cli import main
from maitre.errors import UsageError
from maitre.records import Workload
from maitre.workload import TRACE_FORMATS, export_trace, load_workload

TABLE = "timestamp_s,prompt_tokens,output_tokens\n100,600,9\n100.25,1,8\n102,512,7\n"
HASHED = [
    {"timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [7, 8, 9]},
    {"timestamp": 500, "input_length": 33, "output_length": 6, "hash_ids": [7, 8, 3]},
]


def load(tmp_path: Path, content: str):
    path = tmp_path / "t"
    path.write_text(content)
    return load_workload(str(path))


def rows_of(lines: str):
    return [json.loads(line) for line in lines.splitlines()]


@pytest.mark.parametrize("tool", TRACE_FORMATS)
def test_every_format_reads_back_as_the_same_traffic(tmp_path: Path, tool: str):
    workload = load(tmp_path, TABLE)
    back = load(tmp_path, export_trace(workload, tool, "FILE")[0])
    assert back.prompt_tokens.tolist() == workload.prompt_tokens.tolist()
    assert back.output_tokens.tolist() == workload.output_tokens.tolist()
    assert back.arrival_s.tolist() == [0, 0.25, 2]


def test_every_prompt_has_its_chunks_for_vllm_makes_an_empty_one_without(tmp_path: Path):
    lines, how = export_trace(load(tmp_path, TABLE), "vllm-bench", "t.jsonl")
    assert [row["hash_ids"] for row in rows_of(lines)] == [[0, 1], [2], [3]]
    assert [row["timestamp"] for row in rows_of(lines)] == [0, 250, 2000]
    assert "--dataset-path t.jsonl" in how
    assert "--timed-trace-sec-multiplier 0.001" in how
    assert "--timed-trace-chunk-hash-size 512" in how
    assert "--num-prompts 3" in how


def test_shared_prefixes_and_their_chunk_size_survive(tmp_path: Path):
    lines, how = export_trace(load(tmp_path, "\n".join(map(json.dumps, HASHED))), "vllm-bench", "FILE")
    assert [row["hash_ids"] for row in rows_of(lines)] == [[7, 8, 9], [7, 8, 3]]
    assert "--timed-trace-chunk-hash-size 16" in how


def test_a_row_without_hashes_among_others_gets_fresh_ones(tmp_path: Path):
    rows = [*HASHED, {"timestamp": 900, "input_length": 20, "output_length": 6}]
    lines, _ = export_trace(load(tmp_path, "\n".join(map(json.dumps, rows))), "mooncake", "FILE")
    assert rows_of(lines)[2]["hash_ids"] == [10, 11]


def test_guidellm_takes_seconds(tmp_path: Path):
    lines, _ = export_trace(load(tmp_path, TABLE), "guidellm", "FILE")
    assert [row["timestamp"] for row in rows_of(lines)] == [0, 0.25, 2]


def test_traffic_without_times_and_unknown_tools_are_refused(tmp_path: Path):
    untimed = load(tmp_path, "prompt_tokens,output_tokens\n1,2\n")
    with pytest.raises(UsageError, match="arrival times"):
        export_trace(untimed, "mooncake", "FILE")
    with pytest.raises(UsageError, match="no trace format 'locust'") as caught:
        export_trace(untimed, "locust", "FILE")
    assert "vllm-bench" in caught.value.hint


def test_the_command_line_writes_the_trace_and_says_how_to_replay_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    table, trace = tmp_path / "t.csv", tmp_path / "t.jsonl"
    table.write_text(TABLE)
    with pytest.raises(SystemExit) as done:
        main(["profile", str(table), "--to", "vllm-bench", "-o", str(trace)])
    assert done.value.code == 0
    assert len(trace.read_text().splitlines()) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert f"--dataset-path {trace}" in err
    with pytest.raises(SystemExit):
        main(["profile", str(table), "--to", "aiperf"])
    assert len(rows_of(capsys.readouterr().out)) == 3


def test_a_trace_and_json_are_two_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as done:
        main(["profile", "fixed:1:2", "--to", "mooncake", "--json"])
    assert done.value.code == 2
    assert "two answers" in capsys.readouterr().err


def test_an_unknown_tool_is_refused_before_anything_is_read(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as done:
        main(["profile", "missing.csv", "--to", "locust"])
    assert done.value.code == 2
    assert "--to locust: no such trace format" in capsys.readouterr().err


def test_a_trace_with_more_hashes_than_fit_in_memory_is_refused_and_one_without_any_is_not():
    blocks = {"prefix_hashes": [[1], [1]], "prefix_block_tokens": 16}
    workload = Workload(
        name="n", source="s", prompt_tokens=[2**31 - 1, 2], output_tokens=[3, 4], arrival_s=[0, 1.5], **blocks
    )
    with pytest.raises(UsageError, match="134,217,729 hashes") as caught:
        export_trace(workload, "mooncake", "FILE")
    assert "--num-requests" in caught.value.hint
    lines, _ = export_trace(workload, "guidellm", "FILE")
    assert [row["input_length"] for row in rows_of(lines)] == [2**31 - 1, 2]
