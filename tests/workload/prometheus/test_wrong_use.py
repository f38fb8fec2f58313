"""What cannot work is said in one line, before or instead of an answer."""

import pytest

from maitre.cli import main

NAMES = ["vllm:request_prompt_tokens", "vllm:num_requests_running"]


@pytest.fixture
def complaint(capsys):
    """Runs `maitre` and returns the exit code and what it complains of; nothing goes to stdout."""

    def call(*arguments):
        with pytest.raises(SystemExit) as finished:
            main(list(arguments))
        out, err = capsys.readouterr()
        assert out == ""
        assert "Traceback" not in err
        assert "hint: " in err
        return finished.value.code, err

    return call


@pytest.mark.parametrize("address", ["", "localhost:9090", "ftp://host", "http://"])
def test_what_is_no_address(complaint, address):
    code, err = complaint("profile", f"prometheus:{address}")
    assert code == 2
    assert "not the address of a Prometheus API" in err


def test_nobody_listens(complaint):
    code, err = complaint("profile", "prometheus:http://127.0.0.1:1/prefix")
    assert code == 3
    assert "nothing listens at http://127.0.0.1:1/prefix" in err


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["up"], "has no metrics of vLLM"),
        (["vllm:num_requests_running"], "no histogram of prompt lengths"),
        (NAMES, "no request finished from"),
    ],
)
def test_a_server_that_has_not_what_it_takes(complaint, start_recorded, names, told):
    for arguments in (("profile",), ("simulate", "--model", "qwen2.5-1.5b", "--gpu", "l4")):
        verb, *options = arguments
        code, err = complaint(verb, f"prometheus:{start_recorded(names, {})}", *options)
        assert code == 2
        assert told in err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--requests", "--json"], "keeps histograms alone"),
        (["--mean-latency", "8s"], "keeps histograms alone"),
        (["--prompt-column", "x"], "a Prometheus has no columns"),
        (["--reference", "chat"], "both given"),
        (["--where", "model"], "no filter"),
        (["--since", "yesterday"], "no time"),
        (["--header", "nothing"], "no header"),
        (["--timeout", "soon"], "not a duration"),
        (["--max-model-len", "long"], "not a number of tokens"),
        (["--bearer-token-file", "/nowhere"], "/nowhere"),
    ],
)
def test_options_that_do_not_fit(complaint, options, told):
    code, err = complaint("profile", "prometheus:http://127.0.0.1:1", *options)
    assert code == 2
    assert told in err


def test_a_login_for_another_source(complaint):
    for option in (("--tenant", "a"), ("--max-model-len", "8K"), ("--insecure",)):
        code, err = complaint("profile", "fixed:10:10", *option)
        assert code == 2
        assert "are for a Prometheus" in err


def test_what_the_options_say_reaches_the_server(monkeypatch):
    seen = []

    def note(_address, access, path, params):
        seen.append((access, path, params))
        raise SystemExit(7)

    monkeypatch.setattr("maitre.prometheus.client.ask", note)
    with pytest.raises(SystemExit):
        main(
            [
                *("profile", "prometheus:http://127.0.0.1:1", "--header", "X-A: b: c", "--tenant", "t"),
                *("--timeout", "5s", "--where", "namespace=prod", "--insecure"),
            ]
        )
    access, path, params = seen[0]
    assert (access.headers, access.tenant, access.timeout_s, access.insecure) == ((("X-A", "b: c"),), "t", 5.0, True)
    assert path == "/api/v1/label/__name__/values"
    assert ("match[]", '{__name__=~"(?i).*vllm.*",namespace="prod"}') in params
