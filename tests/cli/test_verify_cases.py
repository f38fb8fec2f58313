"""Public metrics and logs with their right diagnosis: `maitre verify` as a user would call it."""

import json

import pytest

from maitre.cli import main

GIVEN = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization", "api_server_count")
ACTIONS = {  # what must not be recommended, in the words of the cases, is a remedy's code
    "any-flag-change": {
        "raise-max-num-seqs", "lower-max-num-seqs", "raise-token-budget", "lower-token-budget", "fp8-kv-cache",
        "more-memory", "raise-gpu-memory-utilization", "lower-gpu-memory-utilization", "lower-max-model-len",
        "raise-max-loras",
    }
}  # fmt: skip


def command_line(case, folder):
    words, command = ["verify", "--json"], []
    for name in case["files"]:
        if name.endswith(".command.txt"):
            command = ["--", *(folder / name).read_text().split()]
        else:
            words += ["--metrics" if name.endswith(".prom") else "--log", str(folder / name)]
    given = case.get("given", {})
    for key in GIVEN:
        if isinstance(given.get(key), int | float):
            words += [f"--{key.replace('_', '-')}", str(given[key])]
    return [*words, *(["--enable-lora"] if given.get("enable_lora") else []), *command]


def test_every_public_case_is_diagnosed_rightly(shared_path, capsys):
    cases = json.loads((shared_path / "cases" / "cases.json").read_text("utf-8"))
    diagnosed = [case for case in cases if case["kind"] == "diagnosis"]
    assert len(diagnosed) >= 8
    wrong = {}
    for case in diagnosed:
        with pytest.raises(SystemExit):
            main(command_line(case, shared_path / "cases"))
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        answer = json.loads(out)
        shown = json.dumps(answer["findings"]).lower().replace("_", "-") + answer["summary"].lower()
        expected = case["expect"]
        missing = [group for group in expected["must_mention"] if not any(word in shown for word in group)]
        codes = {finding["remedy_code"] for finding in answer["findings"]}
        banned = set().union(*(ACTIONS.get(action, {action}) for action in expected["must_not_recommend"]))
        verdicts = expected["verdict"]["any_of"] if isinstance(expected["verdict"], dict) else [expected["verdict"]]
        if answer["verdict"] not in verdicts or missing or codes & banned:
            wrong[case["id"]] = (answer["verdict"], answer["summary"], missing, codes & banned)
    assert not wrong
