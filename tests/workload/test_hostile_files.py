"""Files made or broken in nasty ways end in a clear message or are read, and never fill the memory."""

import gzip
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from maitre.errors import InputError
from maitre.workload import json_rows, load_workload, loading, otlp_json, sharegpt, tables

GOOD = b"prompt_tokens,output_tokens\n"


def load(tmp_path: Path, content: bytes):
    path = tmp_path / "t"
    path.write_bytes(content)
    return load_workload(str(path))


def test_a_file_of_two_gigabytes_is_refused_without_reading_it(tmp_path: Path):
    path = tmp_path / "huge.csv"
    with path.open("wb") as file:
        file.write(GOOD)
        file.truncate(2 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="more than 1 GiB"):
        load_workload(str(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_a_gzip_bomb_is_unpacked_up_to_the_limit_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loading, "_MAX_BYTES", 1 << 20)
    with pytest.raises(InputError, match=r"more than 0\.000977 GiB"):
        load(tmp_path, gzip.compress(GOOD + b"1,1\n" * (1 << 20)))


def test_endless_stdin_is_cut_at_the_limit(tmp_path: Path):
    program = (
        "import sys; from maitre.workload import loading; loading._MAX_BYTES = 1 << 20; loading.load_workload('-')"
    )
    with Path("/dev/zero").open("rb") as endless:
        done = subprocess.run(
            [sys.executable, "-c", program], stdin=endless, capture_output=True, text=True, check=False
        )
    assert "stdin: more than" in done.stderr


def test_a_line_of_fifty_megabytes_is_a_line(tmp_path: Path):
    row = {"prompt": "x" * 50_000_000, "prompt_tokens": 3, "output_tokens": 4}
    assert load(tmp_path, json.dumps(row).encode() + b"\n").prompt_tokens.tolist() == [3]
    field = b'prompt,prompt_tokens,output_tokens\n"' + b"x" * 50_000_000 + b'",3,4\n'
    assert load(tmp_path, field).prompt_tokens.tolist() == [3]
    with pytest.raises(InputError, match="line 1: longer than 1 MiB"):
        load(tmp_path, b"x" * 50_000_000)
    with pytest.raises(InputError, match="no column is recognised"):
        load(tmp_path, b'{"' + b"x" * 50_000_000 + b'": 1}')


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + b"1,1\n" * 3000 + b"2,\0\n", "line 3002: binary data"),
        (b'{"prompt_tokens": 1, "output_tokens": 2}\n' * 500 + b"\0\n", "line 501: binary data"),
        ((GOOD.decode() + "1,1\n").encode("utf-16"), "binary data"),
        ((GOOD.decode() + "1,1\n").encode("utf-32"), "binary data"),
        (GOOD + b"1,1\n" * 3000 + b"2,\xff\n", "line 3002: byte 0xff is not UTF-8"),
        (b'{"a": "\xc3\x28"}\n', "line 1: byte 0xc3 is not UTF-8"),
        (b'[{"prompt_tokens": 1, "x": "\xff"}]', "is not UTF-8"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
        (b'[{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}]", "nested too deeply"),
        (b'{"resourceSpans":' + b"[" * 100_000, "nested too deeply"),
        (b'{"conversations":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (
            b'[{"conversations": [{"from": "gpt"}]},' + b"[" * 100_000 + b"]",
            "t: JSON with a number too long, or nested",
        ),
        (b'{"data": [' + b"7," * 1000 + b"7]}", "no list of requests"),
        (b"\x1f\x8b" + b"\0" * 100, "gzip data is corrupt"),
        (gzip.compress(gzip.compress(GOOD + b"1,1\n")), "binary data"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, content: bytes, message: str):
    with pytest.raises(InputError) as caught:
        load(tmp_path, content)
    assert message in str(caught.value)


def test_numbers_beyond_all_bounds_are_dropped(tmp_path: Path):
    rows = [b"1,1", b"1e400,1", b"9" * 5000 + b",1", b"-1,1", b"0x10,1", b"nan,1", b"inf,1", b"1;1,1", b"\xd9\xa3,1"]
    workload = load(tmp_path, GOOD + b"\n".join(rows) + b"\n")
    assert workload.prompt_tokens.tolist() == [1]
    assert sum(workload.num_dropped.values()) == len(rows) - 1


def test_half_a_character_that_json_escapes_is_no_length_and_no_name(tmp_path: Path):
    rows = [{"prompt_tokens": "\ud800", "output_tokens": 1, "\ud800": 1}, {"prompt_tokens": float("nan")}]
    rows.append({"prompt_tokens": 2, "output_tokens": 3})
    assert load(tmp_path, "\n".join(map(json.dumps, rows)).encode()).prompt_tokens.tolist() == [2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" + b"{}," * 4000 + b"{}]", "more than 1,000 values"),
        (b"[" + b"7," * 4000 + b"7]", "more than 1,000 values"),
        (b'{"a": 1' + b',"b":1' * 4000 + b"}", "more than 1,000 values"),
        (GOOD + b"1,1\n" * 4000, "more than 1,000 lines"),
        (b'{"prompt_tokens": 1, "output_tokens": 2}\n' * 4000, "more than 1,000 lines"),
    ],
)
def test_small_things_in_great_number_are_refused_before_they_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
):
    monkeypatch.setattr(json_rows, "_MAX_VALUES", 1000)
    monkeypatch.setattr(tables, "_MAX_LINES", 1000)
    with pytest.raises(InputError, match=message):
        load(tmp_path, content)


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": [' + b"{}," * 4000 + b"{}]}\n" * 2,
        b'{"resourceSpans": [' + b"{}," * 4000 + b"{}]}",
        b'[{"conversations": [' + b"{}," * 4000 + b"{}]}]",
        b"[" + b"{}," * 4000 + b"{},",
    ],
)
def test_long_documents_are_not_turned_into_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes):
    for module in (json_rows, sharegpt):
        monkeypatch.setattr(module, "MAX_BUILT_BYTES", 1000)
    monkeypatch.setattr(otlp_json, "_MAX_DOCUMENT_BYTES", 1000)
    with pytest.raises(InputError, match=r"longer than|more than|not valid JSON"):
        load(tmp_path, content)
