"""Units: people's spelling is read as vLLM reads it, and written with three significant figures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import UsageError
from maitre.units import GIB, MIB, format_bytes, format_seconds, parse_duration_s, parse_token_count


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("8192", 8192), ("8k", 8000), ("8K", 8192), ("1m", 10**6), ("1M", 2**20), ("1.5k", 1500), (" 64 ", 64)],
)
def test_a_small_suffix_is_decimal_and_a_large_one_binary(text, tokens):
    assert parse_token_count(text) == tokens


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "x", "1.5", "1.0001k", "1e3", "8 k", "8kk", "nan", "9" * 20, "9" * 999, "2147483648"]
)
def test_what_is_no_number_of_tokens_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="not a number of tokens") as caught:
        parse_token_count(text)
    assert "8K (8,192)" in caught.value.hint


@given(st.integers(1, 2**31 - 1))
def test_a_plain_number_stays_exactly_itself(tokens):
    assert parse_token_count(str(tokens)) == tokens


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("2s", 2), ("1.5min", 90), ("250 us", 250e-6), ("1h", 3600), ("3", 3)]
)
def test_durations_are_read_in_seconds(text, seconds):
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1 day", "1,5s", "inf"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(196_608, "196,608 B"), (0, "0 B"), (1.5 * MIB, "1.5 MiB"), (28.016 * GIB, "28.02 GiB"), (-GIB, "-1.00 GiB")],
)
def test_bytes_are_written_in_the_unit_that_fits(num_bytes, text):
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0 µs"), (430e-6, "430 µs"), (0.02714, "27.1 ms"), (1.238, "1.24 s"), (119, "119 s")),
        *((200, "3 min 20 s"), (999.6e-6, "1 ms"), (0.9996, "1 s"), (7384, "123 min 4 s")),
    ],
)
def test_durations_are_written_with_three_significant_figures(seconds, text):
    assert format_seconds(seconds) == text


@given(st.floats(1e-9, 1e5))
def test_no_duration_is_written_with_an_exponent(seconds):
    if seconds >= 1e-6:
        assert "e" not in format_seconds(seconds)
