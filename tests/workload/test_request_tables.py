import gzip
import json
from pathlib import Path

import polars as pl
import pytest

from maitre.errors import InputError
from maitre.workload import Columns, load_workload

ROWS = [(0.0, 10, 5), (0.5, 20, 6), (2.0, 30, 7)]
FRAME = pl.DataFrame(ROWS, schema=["arrived_at", "prompt_tokens", "output_tokens"], orient="row")
NESTED = [{"arrived_at": t, "usage": {"prompt_tokens": p, "completion_tokens": o}} for t, p, o in ROWS]


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", FRAME.write_csv()),
        ("crlf.csv", FRAME.write_csv(line_terminator="\r\n")),
        ("bom.csv", "\ufeff" + FRAME.write_csv()),
        ("blank.csv", "\n" + FRAME.write_csv()),
        ("t.tsv", FRAME.write_csv(separator="\t")),
        ("semicolons.csv", FRAME.write_csv(separator=";")),
        ("quoted.csv", FRAME.write_csv(quote_style="always")),
        ("t.csv.gz", gzip.compress(FRAME.write_csv().encode())),
        ("t.jsonl", FRAME.write_ndjson()),
        ("t.ndjson", FRAME.write_ndjson() + "\n\n"),
        ("nested.jsonl", "\n".join(map(json.dumps, NESTED))),
        ("t.json", json.dumps(NESTED)),
        ("indented.json", json.dumps(NESTED, indent=2)),
        ("wrapped.json", json.dumps({"data": NESTED, "meta": {"page": 1}}, indent=2)),
        ("t.jsonl.gz", gzip.compress(FRAME.write_ndjson().encode())),
    ],
)
def test_every_text_format_gives_the_same_requests(tmp_path: Path, name: str, content: str | bytes) -> None:
    workload = load_workload(write(tmp_path / name, content))
    assert workload.prompt_tokens.tolist() == [10, 20, 30]
    assert workload.output_tokens.tolist() == [5, 6, 7]
    assert workload.arrival_s is not None
    assert workload.arrival_s.tolist() == [0.0, 0.5, 2.0]
    assert workload.num_dropped == {}


def test_parquet_with_nested_columns_is_read_by_dotted_path(tmp_path: Path) -> None:
    pl.DataFrame(NESTED).write_parquet(tmp_path / "t.parquet")
    workload = load_workload(str(tmp_path / "t.parquet"))
    assert workload.prompt_tokens.tolist() == [10, 20, 30]
    assert workload.output_tokens.tolist() == [5, 6, 7]


def test_prompt_texts_with_separators_and_line_ends_do_not_disturb_csv(tmp_path: Path) -> None:
    text = 'prompt,prompt_tokens,output_tokens\n"a, b\nc ""d""",10,5\n"",20,6\n'
    assert load_workload(write(tmp_path / "t.csv", text)).prompt_tokens.tolist() == [10, 20]


def test_json_keys_that_hold_dots_are_found(tmp_path: Path) -> None:
    row = {"gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3}
    workload = load_workload(write(tmp_path / "t.jsonl", json.dumps(row)))
    assert (workload.prompt_tokens.tolist(), workload.output_tokens.tolist()) == ([7], [3])


def test_json_rows_may_differ_in_type_and_fields(tmp_path: Path) -> None:
    rows = [
        '{"prompt_tokens": 1, "output_tokens": 2}',
        '{"prompt_tokens": "3", "output_tokens": 4.0, "extra": {"a": [1]}}',
        '{"prompt_tokens": null, "output_tokens": 4}',
        '{"output_tokens": 4}',
        '{"prompt_tokens": true, "output_tokens": 4}',
        '{"prompt_tokens": NaN, "output_tokens": 4}',
        '{"prompt_tokens": {"text": 4}, "output_tokens": 4}',
        '{"prompt_tokens": 5, "output_tokens": 6}',
    ]
    workload = load_workload(write(tmp_path / "t.jsonl", "\n".join(rows)))
    assert workload.prompt_tokens.tolist() == [1, 3, 5]
    assert workload.num_dropped == {"prompt_tokens missing": 2, "prompt_tokens not a number": 3}


def test_rows_are_sorted_by_time_and_equal_times_keep_their_order(tmp_path: Path) -> None:
    text = "ts,prompt_tokens,output_tokens\n5,1,1\n2,2,1\n5,3,1\n2,4,1\n"
    workload = load_workload(write(tmp_path / "t.csv", text))
    assert workload.prompt_tokens.tolist() == [2, 4, 1, 3]
    assert workload.arrival_s is not None
    assert workload.arrival_s.tolist() == [0, 0, 3, 3]


def test_many_equal_times_keep_their_order(tmp_path: Path) -> None:
    lines = "".join(f"{-(n % 3)},{n + 1},1\n" for n in range(300))
    workload = load_workload(write(tmp_path / "t.csv", "ts,prompt_tokens,output_tokens\n" + lines))
    assert workload.prompt_tokens.tolist() == [n + 1 for rest in (2, 1, 0) for n in range(rest, 300, 3)]


def test_times_centuries_apart_do_not_overflow(tmp_path: Path) -> None:
    text = "time,prompt_tokens,output_tokens\n2250-01-01,1,1\n1700-01-01,1,1\n"
    workload = load_workload(write(tmp_path / "t.csv", text))
    assert workload.arrival_s is not None
    assert workload.arrival_s.tolist() == [0, 200_883 * 86400]


def test_some_requests_of_a_timed_table_are_its_first_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", FRAME.write_csv())
    workload = load_workload(path, num_requests=2, seed=5)
    assert workload.prompt_tokens.tolist() == [10, 20]
    assert "the first 2 of 3 requests" in workload.source


def test_some_requests_of_an_untimed_table_are_a_random_sample_without_replacement(tmp_path: Path) -> None:
    lines = "".join(f"{n},1\n" for n in range(1, 101))
    path = write(tmp_path / "t.csv", "prompt_tokens,output_tokens\n" + lines)
    drawn = load_workload(path, num_requests=50, seed=1).prompt_tokens.tolist()
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 50
    assert max(drawn) > 50
    assert drawn == load_workload(path, num_requests=50, seed=1).prompt_tokens.tolist()
    assert drawn != load_workload(path, num_requests=50, seed=2).prompt_tokens.tolist()
    assert "at random without replacement (seed 1)" in load_workload(path, num_requests=50, seed=1).source


def test_latencies_come_from_their_column_or_from_end_times(tmp_path: Path) -> None:
    lengths = "prompt_tokens,output_tokens"
    for header, row, latency_s in [
        ("start,latency_ms", "0,1500", 1.5),
        ("startTime,endTime", "2026-01-01T00:00:00Z,2026-01-01T00:00:02.5Z", 2.5),
        ("startTime,latency", "0,2500", 2.5),  # 250 a token: no server needs that many seconds
        ("startTime,latency", "0,2.5", 2.5),
    ]:
        workload = load_workload(write(tmp_path / "t.csv", f"{header},{lengths}\n{row},10,10\n"))
        assert workload.latency_s is not None, header
        assert workload.latency_s.tolist() == [latency_s]


def test_a_guessed_latency_column_with_gaps_costs_no_request_but_a_named_one_does(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "latency_s,prompt_tokens,output_tokens\n1.5,1,1\n,2,2\n")
    guessed = load_workload(path)
    assert guessed.num_requests == 2
    assert guessed.latency_s is None
    named = load_workload(path, columns=Columns(latency="latency_s"))
    assert named.latency_s is not None
    assert named.latency_s.tolist() == [1.5]
    assert named.num_dropped == {"latency missing or unreadable": 1}


def test_end_times_of_another_form_than_start_times_are_left_alone(tmp_path: Path) -> None:
    text = "start_time,end_time,prompt_tokens,output_tokens\n0,2026-01-01T00:00:02Z,1,1\n"
    assert load_workload(write(tmp_path / "t.csv", text)).latency_s is None


def test_a_broken_line_of_json_is_named_by_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", FRAME.write_ndjson() + '{"arrived_at": 3, "prompt_tok')
    with pytest.raises(InputError, match=r"t\.jsonl, line 4, .*truncated"):
        load_workload(path)


def test_a_line_too_far_down_to_be_sampled_is_still_named(tmp_path: Path) -> None:
    row = '{"prompt_tokens": 1, "output_tokens": 2}\n'
    with pytest.raises(InputError, match="line 2001"):
        load_workload(write(tmp_path / "t.jsonl", row * 2000 + '{"prompt_tokens": 1,\n' + row))


@pytest.mark.parametrize("cut", [4, 12, 100, 400])
def test_a_truncated_parquet_file_is_an_input_error(tmp_path: Path, cut: int) -> None:
    FRAME.write_parquet(tmp_path / "whole.parquet")
    content = (tmp_path / "whole.parquet").read_bytes()[:cut]
    with pytest.raises(InputError, match="corrupt or truncated"):
        load_workload(write(tmp_path / "t.parquet", content))
