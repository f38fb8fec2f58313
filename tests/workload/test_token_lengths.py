from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import InputError
from maitre.workload import load_workload
from maitre.workload.lengths import REASONS, read_lengths


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        *((value, "") for value in ("1", " 12 ", "4808.0", "1e3", 10_000_000, 7.0)),
        *((value, "missing") for value in (None, "", "null", "N/A", "-")),
        *((value, "not a number") for value in ("twelve", "nan", float("nan"), "true", True, "1,000", "0x10")),
        *((value, "zero") for value in ("0", 0, "-0.0")),
        *((value, "negative") for value in ("-1", -5, "-0.5", float("-inf"))),
        *((value, "not whole") for value in ("1.5", 0.1)),
        *((value, "over 10 million") for value in ("10000001", 10**18, "inf", 1e300)),
    ],
)
def test_a_value_is_a_length_or_has_one_reason_why_not(value: Any, reason: str) -> None:
    lengths = read_lengths(pl.Series([value]))
    assert REASONS[lengths.reason[0]] == reason
    assert (lengths.tokens[0] > 0) == (reason == "")


def test_lists_are_no_lengths() -> None:
    assert read_lengths(pl.Series([[1], [2]])).reason.all()


FIELDS = st.one_of(
    st.integers(-10, 10**8).map(str),
    st.floats().map(str),
    st.sampled_from(["", "x", "true", "null", "17", "3", "0"]),
)


@given(rows=st.lists(st.tuples(FIELDS, FIELDS), min_size=1))
def test_kept_and_dropped_rows_add_up(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    path = tmp_path_factory.mktemp("rows") / "t.csv"
    path.write_text("id,prompt_tokens,output_tokens\n" + "".join(f"r,{a},{b}\n" for a, b in rows))
    try:
        workload = load_workload(str(path))
    except InputError as error:
        assert "no row is a usable request" in str(error)  # noqa: PT017
        return
    assert workload.num_requests + sum(workload.num_dropped.values()) == len(rows)
    assert all(reason.startswith(("prompt_tokens ", "output_tokens ")) for reason in workload.num_dropped)
