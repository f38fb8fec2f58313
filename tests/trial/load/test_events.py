"""Counting tokens in a stream of server-sent events."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import InputError
from maitre.trial.load.events import EventCounter, error_text

TOKEN = b'data: {"choices":[{"index":0,"text":"\\"choices\\":[{ [DONE]"}],"usage":null}\n\n'
SPACED = b'data: {"choices": [{"text": "a"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":7}}\n\n'
DONE = b"data: [DONE]\n\n"


def count(*pieces):
    counter = EventCounter()
    for now_s, piece in enumerate(pieces):
        counter.feed(piece, float(now_s))
    return counter


@given(st.lists(st.integers(0, 400), max_size=6))
def test_tokens_are_counted_wherever_the_stream_is_cut(cuts):
    stream = TOKEN * 3 + b": keep-alive\n\n" + SPACED + USAGE + DONE
    edges = [0, *sorted(cuts), len(stream)]
    counter = count(*(stream[a:b] for a, b in pairwise(edges)))
    assert (len(counter.arrivals_s), counter.usage_tokens, counter.is_done, counter.error) == (4, 7, True, None)


def test_an_event_arrives_when_its_last_byte_does():
    assert list(count(TOKEN[:20], TOKEN[20:] + TOKEN).arrivals_s) == [1, 1]


def test_the_servers_count_of_tokens_stands_above_the_number_of_events():
    assert count(TOKEN + TOKEN).num_tokens == 2
    assert count(TOKEN + TOKEN + USAGE).num_tokens == 7


def test_an_error_in_the_stream_is_kept_with_its_message():
    counter = count(TOKEN + b'data: {"error": {"message": "out of memory"}}\n\n' + DONE)
    assert (counter.error, counter.num_tokens) == ("out of memory", 1)


def test_an_event_that_is_no_json_is_refused():
    with pytest.raises(InputError, match="no JSON object"):
        count(b"data: hello\n\n")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "too long", "code": 400}}', "too long"),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"detail": [{"loc": 1}]}', '[{"loc": 1}]'),
        (b"<h1>Bad gateway</h1>\n", "<h1>Bad gateway</h1>"),
        (b"\xff", "\ufffd"),
        (b"", ""),
    ],
)
def test_an_error_is_told_in_the_servers_words(body, text):
    assert error_text(body) == text


def test_json_that_is_nested_too_deeply_is_no_event_and_an_error_as_it_stands():
    nested = b"[" * 100_000
    with pytest.raises(InputError, match="no JSON object") as caught:
        count(b"data: " + nested + b"\n\n")
    assert caught.value.hint
    assert error_text(nested) == "[" * 500
