"""What every reader of foreign input promises, and one input tried against it.

Only a `MaitreError` comes out, and it carries a hint; no warning of numpy's; no hang; no memory beyond a gibibyte.
"""

from __future__ import annotations

import resource
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maitre.errors import MaitreError

Target = Callable[[bytes], Any]

MAX_INPUT_BYTES = 1 << 16
MAX_CPU_S = 5.0
MAX_GROWTH_KIB = 1 << 20


class BrokenPromiseError(BaseException):
    """A promise that no exception tells of by itself; not an `Exception`, so that no reader takes it for its own."""


@dataclass(frozen=True)
class Finding:
    """One way in which a reader broke the contract."""

    signature: str
    """Equal for inputs that fail alike: kind of the failure, and the innermost function of maitre."""
    report: str
    """The traceback."""


def examine(target: Target, data: bytes, max_cpu_s: float = MAX_CPU_S) -> Finding | None:
    """Try one input; None when the reader kept its promises."""
    peak_kib = _peak_kib()
    try:
        with _limited_cpu_time(max_cpu_s), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            target(data)
    except MaitreError as error:
        if not error.hint:
            return _finding("no-hint", error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - polars' panics are no Exception
        return _finding(type(error).__name__, error)
    if _peak_kib() - peak_kib > MAX_GROWTH_KIB:
        return Finding("memory", f"{(_peak_kib() - peak_kib) >> 10} MiB more than before\n")
    return None


def _finding(kind: str, error: BaseException) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/maitre/" in frame.filename] or list(frames)
    place = f"{Path(ours[-1].filename).stem}.{ours[-1].name}"
    return Finding(f"{kind}-{place}".replace("<", "").replace(">", ""), "".join(traceback.format_exception(error)))


@contextmanager
def _limited_cpu_time(max_cpu_s: float) -> Iterator[None]:
    """The process's own time, so that a busy machine makes no hangs."""

    def give_up(*_: object) -> None:
        raise BrokenPromiseError(f"more than {max_cpu_s:g} s")

    signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, max_cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
