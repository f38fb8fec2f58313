import pytest

from maitre.errors import InputError
from maitre.workload.columns import Columns, choose_columns


def chosen(*names: str, **asked: str) -> tuple[str | None, ...]:
    columns = choose_columns(names, Columns(**asked), "t.csv")
    timed = (columns.time, columns.end, columns.latency)
    return (columns.prompt, columns.output, *(f"{c.name}:{c.unit}" if c else None for c in timed))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), (1, 2, "TIMESTAMP:None", None, None)),
        (("timestamp", "input_length", "output_length", "hash_ids"), (1, 2, "timestamp:ms", None, None)),
        (("chat_id", "timestamp", "input_length", "output_length", "hash_ids"), (2, 3, "timestamp:s", None, None)),
        (("arrived_at", "num_prefill_tokens", "num_decode_tokens"), (1, 2, "arrived_at:None", None, None)),
        (
            ("Timestamp", "Session ID", "Elapsed time", "Model", "Request tokens", "Response tokens", "Total tokens"),
            (4, 5, "Timestamp:None", None, "Elapsed time:None"),
        ),
        (
            ("created", "usage.prompt_tokens", "usage.completion_tokens", "usage.total_tokens"),
            (1, 2, "created:None", None, None),
        ),
        (("promptTokens", "completionTokens", "latencyMs"), (0, 1, None, None, "latencyMs:ms")),
        (
            ("startTime", "endTime", "prompt_tokens", "completion_tokens"),
            (2, 3, "startTime:None", "endTime:None", None),
        ),
        (("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"), (0, 1, None, None, None)),
        (("arrival_time (ms)", "ISL", "OSL"), (1, 2, "arrival_time (ms):ms", None, None)),
        (("usage.prompt_tokens", "prompt_tokens", "output_tokens"), (1, 2, None, None, None)),
        (("isl", "usage.prompt_tokens", "osl", "output_len"), (1, 3, None, None, None)),
    ],
)
def test_tables_of_known_tools_are_recognised(names: tuple[str, ...], expected: tuple[int | str | None, ...]) -> None:
    prompt, output, *timed = expected
    assert isinstance(prompt, int)
    assert isinstance(output, int)
    assert chosen(*names) == (names[prompt], names[output], *timed)


def test_named_columns_win_over_recognised_ones_and_may_carry_a_unit() -> None:
    names = ("prompt_tokens", "output_tokens", "n_in", "n_out", "t", "wait", "timestamp")
    asked = {"prompt": "n_in", "output": "N_OUT", "time": "t:us", "latency": "wait:ms"}
    assert chosen(*names, **asked) == ("n_in", "n_out", "t:us", None, "wait:ms")


def test_none_leaves_a_recognised_column_out() -> None:
    assert chosen("timestamp", "prompt_tokens", "output_tokens", time="none")[2] is None


def test_an_unrecognised_table_lists_its_columns_and_the_likeliest() -> None:
    with pytest.raises(InputError) as caught:
        choose_columns(["id", "promt_tokens", "n", "output_tokens"], Columns(), "t.csv")
    assert "t.csv: no column is recognised as the prompt length" in str(caught.value)
    assert "--prompt-column" in caught.value.hint
    assert "id, promt_tokens, n, output_tokens; likeliest: promt_tokens" in caught.value.hint


def test_a_named_column_that_does_not_exist_suggests_close_ones() -> None:
    with pytest.raises(InputError, match="no column 'prompt_token'") as caught:
        chosen("prompt_tokens", "output_tokens", prompt="prompt_token")
    assert "likeliest: prompt_tokens" in caught.value.hint


def test_one_column_cannot_hold_both_lengths() -> None:
    with pytest.raises(InputError, match="both"):
        chosen("a", "b", prompt="a", output="a")


def test_a_name_of_sixty_thousand_characters_is_none_that_is_known():
    with pytest.raises(InputError, match="no column is recognised"):
        choose_columns(("[" * 60_000, "output_tokens"), Columns(), "t.csv")
