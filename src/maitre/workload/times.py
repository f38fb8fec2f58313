"""Times and durations of a table's rows: ISO 8601 with or without a zone, or numbers since an epoch or a start."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from maitre.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maitre.workload.columns import TimedColumn, TimeUnit

_NS_PER: dict[TimeUnit, int] = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_ISO_8601 = (
    r"^(?<day>\d{4}-\d{2}-\d{2})(?:[T ](?<minute>\d{2}:\d{2})(?<second>:\d{2})?(?:[.,](?<fraction>\d{1,9})\d*)?"
    r"\s*(?<zone>Z|z|UTC|[+-]\d{2}(?::?\d{2})?)?)?$"
)
_FORMS = (
    "write ISO 8601 (2026-05-01T12:00:00Z) or numbers, name their unit as in --time-column NAME:ms, "
    "or leave arrivals out with --time-column none"
)
# smallest size of a number that is a time since 1970 in this unit: each spans 1973 to 5138 (ns: from 1973)
_EPOCH_FROM: dict[TimeUnit, float] = {"ns": 1e17, "us": 1e14, "ms": 1e11, "s": 1e8}


class Times(NamedTuple):
    """Times of n rows."""

    ns: NDArray[np.int64]
    """Shape (n,), nanoseconds since 1970 or since the source's own zero; 0 where not valid."""
    valid: NDArray[np.bool_]
    """Shape (n,)."""
    form: str
    """How the column was read, in words."""
    epoch: bool
    """Whether zero is 1970, so that two columns can be compared."""


def read_times(column: pl.Series, chosen: TimedColumn, source: str, wanted: NDArray[np.bool_] | None = None) -> Times:
    """Read a column of times.

    Args:
        column: strings, numbers or Parquet time stamps.
        chosen: the column's name and unit; without a unit, numbers of 10⁸ and more are taken as times since 1970 in
            the unit that their size tells, and smaller ones as seconds.
        source: the file's name in error messages.
        wanted: shape (n,), the rows that ought to have a time; all when None.

    Raises:
        InputError: forms, zones or units are mixed, or fewer than half of the rows have a time.
    """
    where = f"{source}, column '{chosen.name}'"
    times = _read_temporal(column) if column.dtype.is_temporal() else _read_text(column, chosen.unit, where)
    expected = np.ones(len(column), dtype=np.bool_) if wanted is None else wanted
    if 2 * np.count_nonzero(times.valid & expected) >= np.count_nonzero(expected):
        return times
    row = int(np.argmax(expected & ~times.valid))
    what = "nothing" if column[row] is None else f"'{str(column[row])[:40]}'"
    raise InputError(f"{where}: most rows hold no time that can be read; row {row + 1} has {what}", _FORMS)


def _read_text(column: pl.Series, unit: TimeUnit | None, where: str) -> Times:
    """Numbers, or else dates."""
    text = column.cast(pl.String).str.strip_chars()
    numbers = text.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    is_number = np.isfinite(numbers)
    if is_number.all():
        return _read_numbers(numbers, is_number, unit, where)
    iso = _read_iso(text, where)
    if is_number.any() and iso.valid.any():
        both = (int(np.argmax(is_number)), int(np.argmax(iso.valid)))
        examples = " and ".join(f"row {row + 1} has '{text[row]}'" for row in sorted(both))
        raise InputError(f"{where}: numbers and dates are mixed: {examples}", _FORMS)
    return _read_numbers(numbers, is_number, unit, where) if is_number.any() else iso


def read_durations(column: pl.Series, unit: TimeUnit) -> NDArray[np.float64]:
    """Read durations in seconds: shape (n,), NaN where a row has none or a negative one."""
    if isinstance(column.dtype, pl.Duration):
        seconds = column.dt.total_nanoseconds().cast(pl.Float64).fill_null(np.nan).to_numpy() / 1e9
    else:
        text = column.cast(pl.String).str.strip_chars()
        seconds = text.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy() * (_NS_PER[unit] / 1e9)
    return np.where(np.isfinite(seconds) & (seconds >= 0), seconds, np.nan)


def seconds_after(times: Times, column: pl.Series, chosen: TimedColumn, source: str) -> NDArray[np.float64] | None:
    """Seconds from each row's time to another column's, shape (n,); NaN where one is missing or it is the earlier.

    None when the column holds no times, or times that cannot be compared with the first ones.
    """
    try:
        later = read_times(column, chosen, source)
    except InputError:  # a guessed column that holds no times is not what it seemed
        return None
    if (later.form, later.epoch) != (times.form, times.epoch):
        return None
    seconds = np.where(later.valid & times.valid, (later.ns - times.ns) / 1e9, np.nan)
    return np.where(seconds >= 0, seconds, np.nan)


def _read_temporal(column: pl.Series) -> Times:
    if isinstance(column.dtype, pl.Datetime | pl.Date):
        ns = column.cast(pl.Datetime("ns")).cast(pl.Int64)
        return Times(ns.fill_null(0).to_numpy(), ns.is_not_null().to_numpy(), "time stamps", epoch=True)
    nothing = np.zeros(len(column), dtype=np.int64)
    return Times(nothing, nothing.astype(np.bool_), str(column.dtype), epoch=False)


def _read_numbers(values: NDArray[np.float64], valid: NDArray[np.bool_], unit: TimeUnit | None, where: str) -> Times:
    form, epoch, is_given = f"numbers in {unit}", False, unit is not None
    if unit is None:
        unit, epoch = _unit_by_size(values, valid, where)
        form = f"{unit} since 1970" if epoch else "seconds"
    valid = valid & (np.abs(values) < 9e18 / _NS_PER[unit])  # what 64 bits hold
    if is_given:
        epoch = bool(valid.any() and np.median(np.abs(values[valid])) >= _EPOCH_FROM[unit])
    whole = np.floor(np.where(valid, values, 0.0))
    fraction = np.where(valid, values, 0.0) - whole
    ns = whole.astype(np.int64) * _NS_PER[unit] + np.rint(fraction * _NS_PER[unit]).astype(np.int64)
    return Times(ns, valid, form, epoch)


def _unit_by_size(values: NDArray[np.float64], valid: NDArray[np.bool_], where: str) -> tuple[TimeUnit, bool]:
    """The unit that all numbers' sizes tell, and whether they count from 1970."""
    sizes = np.abs(values[valid])
    smallest, largest = float(sizes.min()), float(sizes.max())
    for unit, start in _EPOCH_FROM.items():
        if smallest >= start:
            if largest >= start * 1e3 and unit != "ns":
                break
            return unit, True
    else:
        if largest < _EPOCH_FROM["s"]:
            return "s", False
    raise InputError(f"{where}: times of different units are mixed ({smallest:g} and {largest:g})", _FORMS)


def _read_uniform_iso(text: pl.Series) -> Times | None:
    """The fast way for what nearly every tool writes: all rows in one form; None when a row is not."""
    for pattern, zone, form in (
        ("%+", "UTC", "ISO 8601 with a zone"),
        ("%Y-%m-%d %H:%M:%S%.f", None, "ISO 8601"),
        ("%Y-%m-%dT%H:%M:%S%.f", None, "ISO 8601"),
    ):
        dtype = pl.Datetime("ns", zone)
        if text.head(1).str.strptime(dtype, pattern, strict=False).null_count() == 0:
            stamps = text.str.strptime(dtype, pattern, strict=False)
            if stamps.null_count() == 0:
                return Times(stamps.cast(pl.Int64).to_numpy(), stamps.is_not_null().to_numpy(), form, epoch=True)
    return None


def _read_iso(text: pl.Series, where: str) -> Times:
    uniform = _read_uniform_iso(text)
    if uniform is not None:
        return uniform
    parts = text.str.extract_groups(_ISO_8601).struct.unnest()
    clock = pl.concat_str(
        *("day", pl.lit(" "), pl.col("minute").fill_null("00:00"), pl.col("second").fill_null(":00")),
        *(pl.lit("."), pl.col("fraction").fill_null("0")),
    )
    zone = pl.col("zone").str.replace("^(Z|z|UTC)$", "+0000").str.replace(":", "", literal=True).str.pad_end(5, "0")
    minutes = zone.str.slice(1, 2).cast(pl.Int64, strict=False) * 60 + zone.str.slice(3, 2).cast(pl.Int64, strict=False)
    offset_ns = pl.when(zone.str.starts_with("-")).then(-minutes).otherwise(minutes).fill_null(0) * (60 * 10**9)
    stamp = clock.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False).cast(pl.Int64)
    ns = parts.select(stamp - offset_ns).to_series()
    valid = ns.is_not_null().to_numpy()
    zoned = parts["zone"].is_not_null().to_numpy()[valid]
    if zoned.any() and not zoned.all():
        raise InputError(f"{where}: some times have a zone and some have none", "write all of them with a zone")
    form = "ISO 8601 with a zone" if zoned.any() else "ISO 8601"
    return Times(ns.fill_null(0).to_numpy(), valid, form, epoch=True)
