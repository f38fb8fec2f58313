from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import InputError
from maitre.workload.columns import TimedColumn, TimeUnit
from maitre.workload.times import Times, read_durations, read_times

T0 = datetime(2023, 11, 16, 18, 17, 3, tzinfo=UTC)
NS = int(T0.timestamp()) * 10**9


def read(values: list[Any], unit: TimeUnit | None = None) -> Times:
    return read_times(pl.Series("when", values), TimedColumn(name="when", unit=unit), "t.csv")


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        ("2023-11-16 18:17:03", 0),
        ("2023-11-16T18:17:03.9799600", 979_960_000),
        ("2023-11-16T18:17:03,5", 500_000_000),
        ("2023-11-16T18:17", -3_000_000_000),
        ("2023-11-16T18:17:03Z", 0),
        ("2023-11-16T20:17:03+02:00", 0),
        ("2023-11-16 10:17:03-0800", 0),
        ("2023-11-16T23:47:03.000000001999+05:30", 1),
        (str(NS // 10**9), 0),
        (str(NS // 10**6 + 1), 1_000_000),
        (str(NS // 10**3 + 1), 1_000),
        (f" {NS // 10**9}.5 ", 500_000_000),
        (T0, 0),
        (T0.replace(tzinfo=None), 0),
    ],
)
def test_one_moment_in_many_spellings(value: Any, ns: int) -> None:
    times = read([value])
    assert times.ns.tolist() == [NS + ns]
    assert times.epoch


def test_small_numbers_are_seconds_unless_a_unit_is_named() -> None:
    assert read(["0", "1.5", "3600"]).ns.tolist() == [0, 1_500_000_000, 3_600_000_000_000]
    assert read([0, 250], "ms").ns.tolist() == [0, 250_000_000]


def test_a_few_unreadable_times_are_marked() -> None:
    assert read(["1", None, "x", "4", "inf", "6"]).valid.tolist() == [True, False, False, True, False, True]
    assert read(["2023-02-28", "2023-02-31"]).valid.tolist() == [True, False]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["yesterday", None, "1"], "most rows hold no time that can be read; row 1 has 'yesterday'"),
        (["2023-11-16", "5"], "row 1 has '2023-11-16' and row 2 has '5'"),
        (["1700000000", "1700000000000"], "different units are mixed"),
        (["1", "1700000000"], "different units are mixed"),
        (["2023-11-16T18:17:03Z", "2023-11-16T18:17:03"], "some times have a zone and some have none"),
        ([timedelta(seconds=1)], "most rows hold no time"),
    ],
)
def test_unreadable_or_mixed_columns_are_errors_that_name_the_column(values: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=r"t\.csv, column 'when'") as caught:
        read(values)
    assert message in str(caught.value)


@given(st.lists(st.datetimes(datetime(1973, 6, 1), datetime(2200, 1, 1)), min_size=1))  # noqa: DTZ001
def test_iso_8601_is_read_to_the_microsecond(moments: list[datetime]) -> None:
    expected = [(moment - datetime(1970, 1, 1)) // timedelta(microseconds=1) * 1000 for moment in moments]  # noqa: DTZ001
    assert read([moment.isoformat() for moment in moments]).ns.tolist() == expected


def test_durations_need_a_finite_value_of_zero_or_more() -> None:
    seconds = read_durations(pl.Series(["1500", "0", "-1", "x", None, "inf"]), "ms")
    assert seconds[:2].tolist() == [1.5, 0.0]
    assert (seconds[2:] != seconds[2:]).all()  # NaN
    assert read_durations(pl.Series([timedelta(milliseconds=20)]), "s").tolist() == [0.02]


def test_numbers_that_64_bits_do_not_hold_are_no_times() -> None:
    times = read([1e308, 1e308, 1000, 2000], "ms")
    assert (times.valid.tolist(), times.epoch) == ([False, False, True, True], False)
    with pytest.raises(InputError, match="most rows hold no time"):
        read([1e308, 1e308], "ms")
