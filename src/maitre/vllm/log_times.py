"""When a log's lines were written, in seconds since the epoch.

VLLM itself writes `07-28 06:40:59`, without a year and without a zone; what carries the log (docker, Kubernetes, a JSON
logger) writes more, which then counts. A time without a zone is taken as UTC.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np

from maitre.metric_series import FloatArray

_FULL = re.compile(
    r"(?P<day>\d{4}[-/]\d\d[-/]\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
    r" ?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_YEARLESS = re.compile(r"(?<![\d-])(?P<month>\d\d)-(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)")
_EPOCH = re.compile(r'"(?:ts|time|timestamp|@timestamp|created)"\s*:\s*"?(\d{10}(?:\.\d+)?|\d{13})\b')
_MAX_HEAD = 400
"""Characters in which a line's time stands; in a JSON record it stands anywhere."""
_BACK_DAYS = 30
"""A stamp without a year that is farther back than this is of the next year; a nearer one is another process's."""
_LEAP_YEAR = 2024
"""The year of stamps without one where nothing bounds it: every date exists in it."""


class Stamp(NamedTuple):
    """The time that stands in a line."""

    epoch_s: float | None
    """None where the year is missing."""
    month: int = 1
    day: int = 1
    time: str = "00:00:00"


def stamp_of(line: str) -> Stamp | None:
    """The time in a line, as complete as it stands there; None without one.

    Args:
        line: the whole physical line, with all prefixes.
    """
    head = line if line.lstrip()[:1] == "{" else line[:_MAX_HEAD]
    if (match := _FULL.search(head)) and (epoch_s := _full_time_s(match)) is not None:
        return Stamp(epoch_s)
    if match := _EPOCH.search(head):
        return Stamp(float(match[1]) / (1000 if len(match[1]) == 13 and "." not in match[1] else 1))
    if (match := _YEARLESS.search(head)) and _exists(int(match["month"]), int(match["day"]), match["time"]):
        return Stamp(None, int(match["month"]), int(match["day"]), match["time"])
    return None


def times_s(stamps: Sequence[Stamp | None], until_s: float | None = None) -> FloatArray:
    """Times of lines in the order of the log, shape (n,), NaN for those without one.

    Stamps without a year never run back by more than a month: where they do a year has passed.

    Args:
        stamps: of each line.
        until_s: a moment that the log does not go past, such as the file's change: the last stamp is of the latest year
            that allows it. None: the first stamp's year is a leap year.
    """
    years_later, yearless = 0, []
    before: datetime | None = None
    for stamp in stamps:
        if stamp is None or stamp.epoch_s is not None:
            continue
        now = _at(_LEAP_YEAR, stamp)
        if before is not None and now < before - timedelta(days=_BACK_DAYS):
            years_later += 1
        before = now
        yearless.append((stamp, years_later))
    first = _first_year(yearless, until_s)
    dated = iter(_at(first + later, stamp).timestamp() for stamp, later in yearless)
    known = [np.nan if s is None else s.epoch_s if s.epoch_s is not None else next(dated) for s in stamps]
    return np.array(known, dtype=np.float64)


def _first_year(yearless: Sequence[tuple[Stamp, int]], until_s: float | None) -> int:
    """The year of the first stamp: the latest in which the last one is not too late and every date exists."""
    if not yearless or until_s is None:
        return _LEAP_YEAR
    bound = datetime.fromtimestamp(until_s, UTC) + timedelta(days=1)  # the log's clock may be in another zone
    last, years_later = yearless[-1]
    leaps = {later for stamp, later in yearless if (stamp.month, stamp.day) == (2, 29)}
    year = bound.year - years_later
    while _at(year + years_later, last) > bound or any((year + later) % 4 for later in leaps):
        year -= 1
    return year


def _full_time_s(match: re.Match[str]) -> float | None:
    zone = match["zone"] or "Z"
    try:
        moment = datetime.fromisoformat(f"{match['day'].replace('/', '-')}T{match['time']}{zone}")
    except ValueError:
        return None
    epoch_s = moment.timestamp() + float(f"0.{match['fraction'] or 0}")
    return epoch_s if epoch_s >= 0 else None


def _at(year: int, stamp: Stamp) -> datetime:
    """The moment; 29 February of another year than a leap year is its last day of February."""
    day = min(stamp.day, 28) if stamp.month == 2 and year % 4 else stamp.day
    return datetime.fromisoformat(f"{year:04d}-{stamp.month:02d}-{day:02d}T{stamp.time}+00:00")


def _exists(month: int, day: int, time: str) -> bool:
    try:
        datetime.fromisoformat(f"{_LEAP_YEAR}-{month:02d}-{day:02d}T{time}")
    except ValueError:
        return False
    return True
