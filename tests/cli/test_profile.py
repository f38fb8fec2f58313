import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maitre.cli import main

CSV = "timestamp,prompt_tokens,output_tokens\n0,100,10\n1,200,0\n2,,30\n3,400,40\n5,0,1\n"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        captured = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, captured.out, captured.err

    return call


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "requests.csv"
    path.write_text(CSV)
    return str(path)


def profile_json(run: Run, *arguments: str) -> Any:
    code, out, err = run("profile", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_json_holds_the_profile_and_nothing_else(run: Run, table: str) -> None:
    record = profile_json(run, table, "--mean-latency", "2s")
    assert record["num_requests"] == 2
    assert record["num_dropped"] == 3
    assert {(drop["reason"], drop["count"]) for drop in record["drop_reasons"]} == {
        ("output_tokens zero", 1),
        ("prompt_tokens missing", 1),
        ("prompt_tokens zero", 1),
    }
    assert record["prompt_tokens"] == {"mean": 250, "p50": 250, "p90": 370, "p95": 385, "p99": 397, "max": 400}
    assert record["rate_rps"] == pytest.approx(1 / 3)
    assert record["concurrency_source"] == "little"
    assert record["concurrency_mean"] == pytest.approx(2 / 3)


def test_requests_lists_the_lengths_of_the_kept_requests(run: Run, table: str) -> None:
    record = profile_json(run, table, "--requests")
    assert record["prompt_tokens"] == [100, 400]
    assert record["output_tokens"] == [10, 40]
    assert record["num_requests"] == 2


def test_people_get_percentiles_reasons_and_the_next_step(run: Run, table: str, tmp_path: Path) -> None:
    code, out, err = run("profile", table, "-o", str(tmp_path / "w.json"))
    assert (code, err) == (0, "")
    for words in ("requests: 2 requests", "3 rows dropped", "1 output_tokens zero", "p99", "rate: 0.333 requests/s"):
        assert words in out
    assert "nearest reference: " in out
    assert f"maitre simulate {tmp_path / 'w.json'}" in out


def test_no_escape_codes_reach_a_pipe(run: Run, table: str) -> None:
    assert "\x1b" not in run("profile", table)[1]


def test_the_stored_workload_has_the_same_profile(run: Run, table: str, tmp_path: Path) -> None:
    stored = str(tmp_path / "w.json")
    first = profile_json(run, table, "-o", stored)
    assert profile_json(run, stored) == first


def test_hyphens_are_stdin_and_stdout(run: Run, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run("profile", table, "-o", "-")
    assert (code, json.loads(out)["schema_version"]) == (0, "maitre-workload-1")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(out.encode())))
    record = profile_json(run, "-")
    assert (record["name"], record["num_requests"]) == ("requests", 2)


def test_a_reference_or_a_spec_stands_for_a_file(run: Run) -> None:
    assert profile_json(run, "--reference", "chat", "--num-requests", "50")["num_requests"] == 50
    assert profile_json(run, "fixed:512:256")["prompt_tokens"]["max"] == 512


def test_columns_can_be_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,c,d\n1,2,500,250\n3,4,1500,250\n")
    columns = ("--prompt-column", "a", "--output-column", "b", "--time-column", "c:ms", "--latency-column", "d:ms")
    record = profile_json(run, str(tmp_path / "t.csv"), *columns)
    assert (record["rate_rps"], record["concurrency_source"]) == (1, "timings")
    assert record["concurrency_mean"] == 0.25


def test_reference_lists_the_five(run: Run) -> None:
    code, out, _ = run("reference", "--json")
    assert code == 0
    profiles = json.loads(out)
    assert [profile["name"] for profile in profiles] == ["chat", "rag", "coding", "summarisation", "batch"]
    assert profiles[0]["cell"] == {"max_num_seqs": 256, "max_num_batched_tokens": 16384}
    code, out, _ = run("reference")
    assert code == 0
    assert all(profile["name"] in out for profile in profiles)


def test_the_example_table_is_the_chat_that_the_docs_speak_of(run: Run) -> None:
    example = Path(__file__).parents[2] / "examples" / "chat.csv"
    record = profile_json(run, str(example))
    assert (record["num_requests"], record["num_dropped"]) == (4096, 0)
    assert record["rate_rps"] == pytest.approx(8, rel=0.05)
    assert record["nearest_reference"] == "chat"
