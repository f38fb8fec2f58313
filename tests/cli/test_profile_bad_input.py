"""Whatever is wrong with the input: exit code 2, one message with a hint, no traceback."""

import gzip
import io
import sys
from pathlib import Path

import pytest

from maitre.cli import main

GOOD = "prompt_tokens,output_tokens\n1,2\n"

FILES = {
    "empty": (b"", "the file is empty"),
    "blank": (b" \n\n", "the file is empty"),
    "empty-gzip": (gzip.compress(b""), "the file is empty"),
    "binary": (bytes(range(256)) * 9, "binary data"),
    "utf-16": (GOOD.encode("utf-16"), "binary data"),
    "latin-1": ("prompt_tokens,output_tokens,Größe\n".encode("latin-1"), "line 1: byte 0xf6 is not UTF-8"),
    "header-only": (GOOD.encode().splitlines()[0], "a header, but no rows"),
    "no-header": (b"1,2\n3,4\n", "column names were expected"),
    "unknown-columns": (b"a,b\n1,2\n", "no column is recognised as the prompt length"),
    "only-prompts": (b"prompt_tokens,b\n1,2\n", "no column is recognised as the output length"),
    "too-many-fields": (GOOD.encode() + b"3,4,5\n", "line 3: 3 fields, the header has 2"),
    "open-quote": (GOOD.encode() + b'3,"4\n5,6\n', "line 4: a quoted field does not end"),
    "no-usable-row": (b"prompt_tokens,output_tokens\n0,1\nx,1\n", "no row is a usable request"),
    "mixed-times": (b"time,prompt_tokens,output_tokens\n2023-01-01,1,2\n5,3,4\n", "numbers and dates are mixed"),
    "no-times": (b"time,prompt_tokens,output_tokens\nsoon,1,2\nlater,3,4\n", "most rows hold no time"),
    "html": (b"<html>\n<body>Not found</body>\n", "no column is recognised"),
    "truncated-gzip": (gzip.compress(GOOD.encode())[:-9], "gzip data is corrupt or truncated"),
    "truncated-lines": (b'{"prompt_tokens":1,"output_tokens":2}\n{"prompt_tok', "line 2, column"),
    "first-line-broken": (b'{"prompt_tokens":1,\n{"prompt_tokens":1}\n', "line 1, column 20"),
    "lines-of-lists": (b'{"prompt_tokens":1,"output_tokens":2}\n[1,2]\n', "line 2: not a JSON object"),
    "truncated-array": (b'[{"prompt_tokens":1,"output_tokens":2},\n{"prompt', "line 2, column"),
    "array-of-numbers": (b"[1,2]", "entry 1: not a JSON object"),
    "empty-array": (b"[]", "no rows"),
    "object": (b'{\n"a": 1\n}', "no list of requests"),
    "deep": (b"[" * 100_000, "nested too deeply"),
    "long-number": (b'{"prompt_tokens":' + b"1" * 5000 + b"}\n" + b'{"prompt_tokens":1}', "number too long"),
    "parquet-head": (b"PAR1", "Parquet data is corrupt or truncated"),
    "parquet-noise": (b"PAR1" + bytes(range(256)) + b"PAR1", "Parquet data is corrupt or truncated"),
    "newer-schema": (b'{"schema_version":"maitre-workload-7"}', "holds maitre-workload-7"),
    "incomplete": (b'{"schema_version":"maitre-workload-1","name":"x"}', "field 'source'"),
}

ARGUMENTS = {
    ("missing.csv",): "missing.csv: no such file",
    (".",): "is a directory",
    ("chat",): "chat: no such file",
    (): "no workload is given",
    ("--reference", "nope"): "no reference workload 'nope'",
    ("--reference", "chat", "fixed:1:2"): "both given",
    ("--reference", "chat", "--prompt-column", "x"): "no columns",
    ("fixed:1:2", "--prompt-column", "x"): "no columns",
    ("fixed:1",): "no spec of a workload",
    ("fixed:" + "1" * 5000,): "no spec of a workload",
    ("fixed:1:2", "--num-requests", "0"): "too few",
    ("fixed:1:2", "--num-requests", "many"): "many",
    ("fixed:1:2", "--seed", "-1"): "negative",
    ("fixed:1:2", "--mean-latency", "soon"): "'soon' is not a duration",
    ("fixed:1:2", "--requests"): "JSON only",
    ("fixed:1:2", "--json", "-o", "-"): "both want stdout",
    ("fixed:1:2", "another"): "another",
    ("--bogus",): "--bogus",
    ("fixed:1:2", "--bogus"): "--bogus",
}


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["profile", *arguments])
    captured = capsys.readouterr()
    assert caught.value.code == 2
    assert captured.out == ""
    assert captured.err.count("maitre: ") == 1
    assert captured.err.count("hint: ") == 1
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_file_is_named_with_what_is_wrong(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    content, message = FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    err = complaint(capsys, str(path))
    assert str(path) in err
    assert message in err


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda arguments: " ".join(arguments)[:40])
def test_a_wrong_argument_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ARGUMENTS[arguments] in complaint(capsys, *arguments)


def test_a_named_column_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(GOOD)
    assert "no column 'x'" in complaint(capsys, str(tmp_path / "t.csv"), "--prompt-column", "x")


def test_standard_input_without_a_byte_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "stdin: the file is empty" in complaint(capsys, "-")
