"""When a saved scrape was taken: by a line before it, or by the name of its file."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from maitre.vllm.log_times import stamp_of

_NAMED = re.compile(
    r"(?<!\d)(?P<day>20\d\d[-_.]?[01]\d[-_.]?[0-3]\d)[T _.-]?(?P<hour>[0-2]\d)[-_:.hH]?(?P<minute>[0-5]\d)"
    r"(?:[-_:.mM]?(?P<second>[0-5]\d))?(?:[.,](?P<fraction>\d{1,6}))?(?P<zone>Z|[+-]\d{2}:?\d{2})?(?!\d)"
)
_EPOCH = re.compile(r"(?<!\d)(?<!\d\.)(?:(?P<seconds>1\d{9}(?:\.\d{1,9})?)|(?P<milliseconds>1\d{12}))(?![\d])")
_DATE_COMMAND = re.compile(
    r"[A-Z][a-z]{2} (?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<time>\d\d:\d\d:\d\d) (?:AM |PM )?"
    r"(?P<zone>UTC|GMT) (?P<year>\d{4})"
)
_MAX_LINE = 200
"""Characters; a longer line between scrapes is none that gives a time."""


def time_in_name(name: str) -> float | None:
    """Seconds since the epoch by a file's name, `metrics-2026-05-01T12-00-00Z.prom` or `1777636800.txt`.

    Without a zone it is taken as UTC; a day alone says too little.

    Args:
        name: with or without folders.
    """
    text = re.split(r"[/\\]", name)[-1]
    if match := _EPOCH.search(text):
        return _epoch_s(match)
    if match := _NAMED.search(text):
        day = re.sub(r"[-_.]", "", match["day"])
        clock = f"{match['hour']}:{match['minute']}:{match['second'] or '00'}"
        zone = match["zone"] or "Z"
        return _iso_s(f"{day[:4]}-{day[4:6]}-{day[6:]}T{clock}{zone}", float(f"0.{match['fraction'] or 0}"))
    return None


def time_in_line(line: str) -> float | None:
    """Seconds since the epoch by a line between scrapes: `# scraped 2026-05-01T12:00:00Z`, or what `date` prints."""
    if len(line) > _MAX_LINE:
        return None
    stamp = stamp_of(line)
    if stamp is not None and stamp.epoch_s is not None:
        return stamp.epoch_s
    if match := _DATE_COMMAND.search(line):
        text = f"{match['day']} {match['month']} {match['year']} {match['time']}"
        try:
            found = datetime.strptime(text, "%d %b %Y %H:%M:%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            return None
        return found if found >= 0 else None
    return _epoch_s(match) if (match := _EPOCH.search(line)) else None


def _epoch_s(match: re.Match[str]) -> float:
    return float(match["seconds"]) if match["seconds"] else float(match["milliseconds"]) / 1000


def _iso_s(text: str, fraction_s: float) -> float | None:
    try:
        found = datetime.fromisoformat(text).timestamp() + fraction_s
    except ValueError:
        return None
    return found if math.isfinite(found) else None
