"""`maitre import`: the record on stdout, the table on a terminal, and one message for a file that is none."""

import gzip
import io
import json
import sys

import pytest

from maitre.cli import main

GOOD = "Throughput: 10.00 requests/s, 1500.00 total tokens/s, 500.00 output tokens/s\n"
ROWS = "max_num_seqs,concurrency,total_tokens_per_s\n64,512,1000.5\n128,512,1800.5\n256,512,1500.5\n"

BROKEN = {
    "empty": (b"", "the file is empty"),
    "blank": (b" \n\n", "the file is empty"),
    "empty-gzip": (gzip.compress(b""), "the file is empty"),
    "truncated-gzip": (gzip.compress(GOOD.encode())[:-9], "gzip data is corrupt"),
    "binary": (bytes(range(256)) * 9, "binary data"),
    "latin-1": ("Größe,rps\n1,2\n".encode("latin-1"), "not UTF-8"),
    "prose": (b"# A recipe\n\nTake two eggs.\n", "no benchmark result is recognised"),
    "html": (b"<html>\n<body>hello</body>\n", "no benchmark result is recognised"),
    "foreign-table": (b"prompt_tokens,answer\n1,2\n", "no benchmark result is recognised"),
    "foreign-json": (b'{"architectures": ["LlamaForCausalLM"]}', "no benchmark result is recognised"),
    "numbers": (b"[1, 2]", "no list of results"),
    "empty-array": (b"[]", "no list of results"),
    "array-of-words": (b'["a"]', "no list of results"),
    "truncated-json": (b'{"request_throughput": 1.0, "dura', "looks truncated"),
    "truncated-line": (b'{"rps": 1}\n{"rps', "line 2"),
    "deep": (b'{"a":' * 100_000, "nested too deeply"),
    "no-stage": (b'{"metadata": {}, "benchmarks": []}', "without a stage"),
    "guidellm-csv": (b"Run Info,Run Info,Benchmark\nRun ID,Run Index,Type\n,,\n", "import the benchmarks.json"),
    "parquet-noise": (b"PAR1" + bytes(range(256)) + b"PAR1", "Parquet data is corrupt"),
}


@pytest.fixture
def run(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["import", *map(str, arguments)])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return call


@pytest.fixture
def write(tmp_path):
    def make(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def test_json_is_the_record_and_nothing_else(run, write):
    code, out, err = run(write("a.txt", GOOD), "--json")
    record = json.loads(out)
    assert (code, err) == (0, "")
    keys = ("requests_per_s", "total_tokens_per_s", "output_tokens_per_s", "successful", "failed", "trust", "reasons")
    assert [record[key] for key in keys] == [10.0, 1500.0, 500.0, None, None, True, []]


def test_a_result_that_may_not_be_compared_ends_with_1(run, write):
    code, out, err = run(write("a.txt", "(standard_in) 1: syntax error\n"), "--json")
    record = json.loads(out)
    assert (code, err, record["trust"], record["requests_per_s"]) == (1, "", False, None)
    assert "no result" in record["reasons"][0]


def test_a_table_gives_a_verdict(run, write):
    code, out, err = run(write("rows.csv", ROWS), "--json")
    record = json.loads(out)
    assert (code, err, record["verdict"], record["best_rows"]) == (0, "", "best-cell", [1])
    assert (record["recommend"], record["groups"], len(record["rows"])) == ({"max_num_seqs": 128}, {}, 3)


def test_several_files_become_one_table_with_dials_from_their_names(run, write):
    files = [write(f"mns{seqs}.txt", GOOD.replace("1500", str(1500 + seqs))) for seqs in (64, 128)]
    code, out, _ = run(*files, "--concurrency", "512", "--json")
    record = json.loads(out)
    assert (code, [row["max_num_seqs"] for row in record["rows"]]) == (0, [64, 128])
    assert (record["verdict"], record["rows"][0]["concurrency"]) == ("seq-capped", 512)


def test_what_the_user_says_does_not_overrule_the_file(run, write):
    _, out, _ = run(write("rows.csv", ROWS), "--concurrency", "64", "--request-rate", "inf", "--json")
    rows = json.loads(out)["rows"]
    assert {(row["concurrency"], row["request_rate"]) for row in rows} == {(512, "inf")}


def test_standard_input_is_read(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    code, out, _ = run("-", "--json")
    assert (code, json.loads(out)["source"]) == (0, "stdin")


def test_the_terminal_names_evidence_and_remedy(run, write):
    block = "Successful requests: 90\nFailed requests: 10\nRequest throughput (req/s): 9.5\n"
    code, out, _ = run(write("a.txt", block))
    assert code == 1
    assert "10 of 100 requests failed (10.0%)" in out
    assert "server's log" in out
    assert "may not be compared" in out


def test_the_terminal_shows_the_table_and_the_recommendation(run, write):
    code, out, _ = run(write("rows.csv", ROWS))
    assert code == 0
    assert "1,800.50" in out
    assert "best-cell" in out
    assert "--max-num-seqs 128" in out


@pytest.mark.parametrize("width", [40, 80, 200])
def test_dials_and_throughput_are_legible_at_every_width(run, write, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = run(write("rows.csv", ROWS))
    assert all(figure in out for figure in ("64", "128", "1,000.50", "1,500.50"))


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_none_gives_one_message_with_a_hint(run, write, name):
    content, message = BROKEN[name]
    path = write(name, content)
    code, out, err = run(path)
    assert (code, out, err.count("maitre: "), err.count("hint: ")) == (2, "", 1, 1)
    assert str(path) in err
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.json"], "no such file"),
        ([], "FILES"),
        (["x", "--request-rate", "fast"], "'fast' is no rate"),
        (["x", "--request-rate", "0"], "'0' is no rate"),
        (["x", "--concurrency", "0"], "concurrency"),
    ],
)
def test_wrong_arguments_are_named(run, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
