"""The whole way: a server, the verbs, a stored workload."""

import json

import pytest

from maitre.cli import main

USAGE = {"input": 70, "input_cached_tokens": 30, "output": 50}


@pytest.fixture
def maitre(langfuse, read, monkeypatch, capsys):
    for name, value in read.environ.items():
        monkeypatch.setenv(name, value)

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


WINDOW = ("--since", "2026-11-01", "--until", "2026-11-02")


def test_profile_stores_what_simulate_reads(langfuse, maitre, make_call, tmp_path):
    langfuse.rows = [make_call(n, USAGE) for n in range(20)]
    stored = str(tmp_path / "traffic.json")
    code, out, err = maitre(
        "profile", f"langfuse:{langfuse.url}", *WINDOW, "--where", "model=qwen", "-o", stored, "--json"
    )
    assert (code, err) == (0, "")
    assert json.loads(out)["num_requests"] == 20
    assert json.loads(out)["concurrency_source"] == "timings"
    code, out, _ = maitre("profile", stored, "--requests", "--json")
    assert json.loads(out)["prompt_tokens"] == [100] * 20


def test_filters_may_be_repeated(langfuse, maitre, make_call):
    langfuse.rows = [make_call(n, USAGE, model=model) for n, model in enumerate(["a", "b", "c"])]
    where = ("--where", "model=a", "--where", "model=c")
    _, out, _ = maitre("profile", f"langfuse:{langfuse.url}", *WINDOW, *where, "--json")
    assert json.loads(out)["num_requests"] == 2


def test_waits_are_told_on_stderr(langfuse, maitre, make_call):
    langfuse.rows = [make_call(1, USAGE)]
    langfuse.moods = [(429, {"Retry-After": "0"}, b"")]
    code, out, err = maitre("profile", f"langfuse:{langfuse.url}", *WINDOW, "--json")
    assert code == 0
    assert json.loads(out)["num_requests"] == 1
    assert "0 generations; rate limit, waiting 0" in err


@pytest.mark.parametrize(
    ("secret", "status", "code", "message"),
    [("wrong", 200, 2, "refuses the keys"), ("sk-lf-1", 400, 3, "answers 400")],
)
def test_errors_have_their_exit_code_and_no_traceback(langfuse, maitre, monkeypatch, secret, status, code, message):
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", secret)
    langfuse.moods = [(status, {}, b"{}")]
    found, out, err = maitre("profile", f"langfuse:{langfuse.url}", *WINDOW)
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("hint: ") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [("fixed:1:2", "--since", "7d"), ("--reference", "chat", "--where", "model=x")])
def test_a_selection_needs_langfuse(maitre, arguments):
    code, _, err = maitre("profile", *arguments)
    assert code == 2
    assert "no source from Langfuse" in err
