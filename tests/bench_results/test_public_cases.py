"""Print-outs and tables from public threads, with the right answer; compared as cases/README.md says."""

import json

import pytest

from maitre.bench_results import compare, judge, read_results

KINDS = {"bench-output": 7, "surface": 3}


def matches(expected, got):
    if expected is None:
        return got is None
    if isinstance(expected, dict):
        if "any_of" in expected:
            return any(matches(entry, got) for entry in expected["any_of"])
        if "value" in expected:
            allowed = expected.get("abs", expected.get("rel", 0) * abs(expected["value"]))
            return got is not None and abs(got - expected["value"]) <= allowed
        return isinstance(got, dict) and all(matches(entry, got.get(key)) for key, entry in expected.items())
    if isinstance(expected, list):
        return isinstance(got, list) and len(expected) == len(got) and all(map(matches, expected, got))
    return got == expected


@pytest.fixture(scope="session")
def answers(shared_path):
    found = {}
    for case in json.loads((shared_path / "cases" / "cases.json").read_text()):
        if case["kind"] in KINDS:
            runs, is_table = read_results(str(shared_path / "cases" / case["files"][0]))
            results = [judge(run) for run in runs]
            answer = results[0] if len(results) == 1 and not is_table else compare(results)
            found[case["id"]] = (case, answer.model_dump(mode="json"))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_case_is_read_as_it_must_be(answers, kind):
    cases = [(case, answer) for case, answer in answers.values() if case["kind"] == kind]
    assert len(cases) >= KINDS[kind]
    for case, answer in cases:
        for key, expected in case["expect"].items():
            if key == "reason_mentions":
                text = " ".join(answer["reasons"]).lower().replace("_", "-")
                assert all(any(word in text for word in group) for group in expected), (case["id"], text)
            else:
                assert matches(expected, answer.get(key)), (case["id"], key, answer.get(key))


@pytest.mark.parametrize(
    ("case_id", "keys"),
    [
        ("bench-2023-separate-lines", ["num_requests"]),
        ("bench-total-and-output-rate", ["total_tokens_per_request"]),
        ("bench-serve-failed-line-and-remark", ["mean_ttft_ms", "duration_s"]),
        ("bench-absurd-peak", ["ignore", "recomputed_output_tokens_per_s", "recomputed_total_tokens_per_s"]),
        ("bench-median-itl-zero", ["mean_tpot_ms"]),
        ("surface-flat-client-cap", ["noise_rel"]),
        ("surface-not-saturated", ["latency_growth"]),
    ],
)
def test_further_facts_of_the_cases(answers, case_id, keys):
    case, answer = answers[case_id]
    assert {key: matches(case["also"][key], answer.get(key)) for key in keys} == dict.fromkeys(keys, True)
