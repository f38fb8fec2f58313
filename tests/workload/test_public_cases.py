"""Artefacts from public threads, with the right answer; compared as cases/README.md says."""

import json

import pytest

from maitre.cli import main

NUM_CASES = 3


@pytest.fixture(scope="session")
def cases(shared_path):
    found = [
        case for case in json.loads((shared_path / "cases" / "cases.json").read_text()) if case["kind"] == "workload"
    ]
    return [(case, str(shared_path / "cases" / case["files"][0])) for case in found]


def answer(path, capsys):
    with pytest.raises(SystemExit):
        main(["profile", path, "--requests", "--json"])
    return json.loads(capsys.readouterr().out)


def mentions(groups, text):
    text = text.lower().replace("_", "-")
    return all(any(word in text for word in group) for group in groups)


def test_every_case_is_read_as_it_must_be(cases, capsys):
    assert len(cases) >= NUM_CASES
    for case, path in cases:
        got = answer(path, capsys)
        expected = {key: value for key, value in case["expect"].items() if key != "drop_reasons"}
        assert {key: got[key] for key in expected} == expected, case["id"]
        for drop, reason in zip(got["drop_reasons"], case["expect"].get("drop_reasons", []), strict=True):
            assert drop["count"] == reason["count"], case["id"]
            assert mentions(reason["mentions"], drop["reason"]), (case["id"], drop)


def test_the_output_that_a_case_also_tells(cases, capsys):
    case, path = next(pair for pair in cases if pair[0]["id"] == "langfuse-cached-counted-twice")
    assert answer(path, capsys)["output_tokens"][1] == case["also"]["output_tokens_of_record_2"]
