"""Whatever goes wrong with a request is an outcome; only a server that was never there is an exception."""

import socket

import pytest

from maitre.errors import SystemFailure, UsageError
from maitre.trial.load import drive
from maitre.trial.load.client import Load
from maitre.trial.load.request import Target

MESSAGE = "This model's maximum context length is 8 tokens"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize(
    ("fault", "kind", "status", "text"),
    [
        ("rejected", "rejected", 400, MESSAGE),
        ("old-rejected", "rejected", 400, MESSAGE),
        ("server-error", "server-error", 500, "the engine is dead"),
        ("hang", "timed-out", None, "no end within 0.5 s"),
        ("short", "wrong-length", 200, "3 tokens came, 4 were asked for"),
        ("garbage", "bad-answer", 200, ""),
        ("redirect", "bad-answer", 307, ""),
        ("reset", "reset", None, ""),
    ],
)
def test_an_error_is_the_outcome_of_its_request_alone(serving, make_load, is_streaming, fault, kind, status, text):
    timeout_s = 0.5 if fault == "hang" else 20
    with serving(faults={1: fault}) as server:
        result = drive(make_load(3, is_streaming=is_streaming), server.url, "tiny", timeout_s=timeout_s)
    failed = result.outcomes[1]
    assert result.num_errors == {kind: 1}
    assert (failed.index, failed.error_kind) == (1, kind)
    assert status in (None, failed.status)
    assert text in failed.error
    assert [outcome.index for outcome in result.completed] == [0, 2]


def test_a_stream_that_breaks_off_keeps_the_tokens_that_came(serving, make_load):
    with serving(gap_s=0.02, faults={0: "reset"}) as server:
        (outcome,) = drive(make_load(1, is_streaming=True), server.url, "tiny", timeout_s=5).outcomes
    assert (outcome.error_kind, outcome.status) == ("reset", 200)
    assert 1 <= outcome.num_tokens <= 3
    assert outcome.first_token_s is not None


def test_an_error_inside_a_stream_is_told(serving, make_load):
    with serving(faults={0: "error-event"}) as server:
        (outcome,) = drive(make_load(1, is_streaming=True), server.url, "tiny", timeout_s=5).outcomes
    assert (outcome.error_kind, outcome.error, outcome.num_tokens) == ("server-error", MESSAGE, 3)


def test_a_server_that_is_gone_refuses_every_request(make_load):
    target = Target(f"http://127.0.0.1:{free_port()}", "tiny")
    result = Load(make_load(4, max_concurrency=2), target, timeout_s=5).run(0.0)
    assert result.num_errors == {"refused": 4}
    assert "Cannot connect" in result.outcomes[0].error


def test_a_server_that_was_never_there_is_a_failure(make_load):
    with pytest.raises(SystemFailure, match="cannot be reached"):
        drive(make_load(1), f"http://127.0.0.1:{free_port()}", "tiny", timeout_s=5)


@pytest.mark.parametrize("address", ["localhost:8000", "http://", "no address"])
def test_an_address_that_is_none_is_refused(make_load, address):
    with pytest.raises(UsageError, match="no address"):
        drive(make_load(1), address, "tiny", timeout_s=5)


def test_the_key_is_not_shown():
    assert "secret" not in repr(Target("http://x", "tiny", "secret"))


def test_an_answer_that_is_nested_too_deeply_is_a_bad_one(serving, make_load):
    with serving(faults={0: "nested"}) as server:
        (outcome,) = drive(make_load(1, is_streaming=False), server.url, "tiny", timeout_s=20).outcomes
    assert outcome.error_kind == "bad-answer"
