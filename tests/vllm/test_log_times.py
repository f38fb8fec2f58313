"""When a log's lines were written, although vLLM's own stamps have no year."""

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.vllm.log_times import stamp_of, times_s

WORDS = "Engine 000: Avg prompt throughput: 1.0 tokens/s"


def epoch_s(text):
    return datetime.fromisoformat(text).timestamp()


def one_time(line, until="2026-11-29T00:00:00+00:00"):
    return times_s([stamp_of(line)], epoch_s(until))[0]


CARRIERS = {
    "vLLM alone": f"INFO 07-28 06:40:59 [loggers.py:118] {WORDS}",
    "a process before it": f"(APIServer pid=12) INFO 07-28 06:40:59 [loggers.py:118] {WORDS}",
    "docker logs -t": f"2026-07-28T06:40:59.000000000Z INFO 01-01 00:00:00 [loggers.py:118] {WORDS}",
    "Kubernetes' files": f"2026-07-28T08:40:59.0+02:00 stdout F INFO 01-01 00:00:00 [loggers.py:118] {WORDS}",
    "another logger": f"2026-07-28 06:40:59,000 - vllm.engine.metrics - INFO - {WORDS}",
    "slashes": f"2026/07/28 06:40:59 {WORDS}",
    "vLLM's JSON": f'{{"levelname": "INFO", "message": "{WORDS}", "asctime": "2026-07-28 06:40:59,000"}}',
    "seconds in JSON": f'{{"msg": "{WORDS}", "ts": 1785220859.0}}',
    "milliseconds in JSON": f'{{"msg": "{WORDS}", "time": 1785220859000}}',
    "docker's json-file": f'{{"log":"INFO 01-01 00:00:00 [l.py:1] {WORDS}\\n","time":"2026-07-28T06:40:59.0Z"}}',
}


@pytest.mark.parametrize("line", CARRIERS.values(), ids=CARRIERS)
def test_every_carrier_tells_the_time(line):
    assert one_time(line) == epoch_s("2026-07-28T06:40:59+00:00")


@pytest.mark.parametrize(
    "line",
    [
        WORDS,
        "INFO 13-45 06:40:59 x",
        "INFO 02-30 06:40:59 x",
        "2026-13-01 00:00:00 x",
        "",
        "0001-01-01T00:00:00+14:00 x",
    ],
)
def test_a_line_without_a_time_has_none(line):
    assert np.isnan(times_s([stamp_of(line)])[0])


def yearless(*days):
    return [stamp_of(f"INFO {day} 12:00:00 [a.py:1] x") for day in days]


def dates(stamps, until):
    return [datetime.fromtimestamp(at, UTC).date().isoformat() for at in times_s(stamps, epoch_s(until))]


def test_the_year_is_the_latest_that_the_files_change_allows():
    stamps = yearless("07-28", "07-29")
    assert dates(stamps, "2026-11-29T00:00:00+00:00") == ["2026-07-28", "2026-07-29"]
    assert dates(stamps, "2026-07-29T12:00:00+00:00") == ["2026-07-28", "2026-07-29"]
    assert dates(stamps, "2026-03-01T00:00:00+00:00") == ["2025-07-28", "2025-07-29"]


def test_a_log_over_new_year_goes_on():
    assert dates(yearless("12-31", "01-01"), "2026-11-29T00:00:00+00:00") == ["2025-12-31", "2026-01-01"]
    assert dates(yearless("08-20", "03-06", "02-01"), "2026-11-29T00:00:00+00:00") == [
        "2024-08-20", "2025-03-06", "2026-02-01",
    ]  # fmt: skip


def test_lines_of_two_processes_may_change_places():
    assert dates(yearless("07-29", "07-28"), "2026-11-29T00:00:00+00:00") == ["2026-07-29", "2026-07-28"]


def test_the_29th_of_february_was_in_a_leap_year():
    assert dates(yearless("02-29"), "2026-11-29T00:00:00+00:00") == ["2024-02-29"]


def test_without_a_bound_differences_still_hold():
    first, second = times_s(yearless("12-31", "01-01"))
    assert second - first == 86400


@given(
    st.lists(
        st.datetimes(datetime(2018, 1, 1), datetime(2030, 1, 1)).filter(lambda at: (at.month, at.day) != (2, 29)),  # noqa: DTZ001
        min_size=1, max_size=1,
    ),
    st.lists(st.integers(0, 300 * 86400), max_size=6),
)  # fmt: skip
def test_stamps_without_a_year_come_back_with_it(start, steps):
    moments = [int(start[0].replace(tzinfo=UTC).timestamp())]
    for step in steps:
        moments.append(moments[-1] + step)
    texts = [datetime.fromtimestamp(at, UTC) for at in moments]
    if any((at.month, at.day) == (2, 29) for at in texts):
        return
    stamps = [stamp_of(at.strftime("INFO %m-%d %H:%M:%S [a.py:1] x")) for at in texts]
    assert times_s(stamps, moments[-1]).tolist() == moments
