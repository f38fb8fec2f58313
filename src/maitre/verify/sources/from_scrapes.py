"""A server's own `/metrics`, scraped for a while."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

from maitre.errors import InputError, MaitreError, SystemFailure, UsageError
from maitre.prometheus.access import Access, Address, read_address
from maitre.prometheus.connection import HttpAnswer, ask
from maitre.units import format_seconds
from maitre.verify.sources.saved_scrapes import read_dumps
from maitre.verify.sources.scrape_collation import Scrape, Scraped, collate, read_scrape

__all__ = ["Scraped", "read_dumps", "scrape_for"]

_NOBODY = Access()
_HINT = "name the vLLM server itself, http://HOST:PORT/metrics"


def scrape_for(
    url: str,
    duration_s: float,
    every_s: float,
    access: Access = _NOBODY,
    *,
    prefixes: Sequence[str] = (),
    instance: str = "",
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Scraped:
    """Scrape a server again and again; what was read before it went away, or before an interrupt, is kept.

    Args:
        url: `http://host:port`, with or without `/metrics`.
        duration_s: from the first scrape to the last; 0 for one.
        every_s: from one scrape to the next.
        access: as whom.
        prefixes: beginnings that stand for `vllm:`.
        instance: becomes a label, to tell servers apart where several are scraped.
        clock: seconds since the epoch.
        sleep: waits for so many seconds.

    Raises:
        UsageError: no usable address, or the server refuses who asks.
        InputError: what answers is no metrics, or not vLLM's.
        SystemFailure: the first scrape had no answer.
    """
    address, path = _address(url)
    start_s = clock()
    scrapes: list[Scrape] = []
    failures: list[MaitreError] = []
    notes: list[str] = []
    try:
        for _ in _ticks(duration_s, every_s, clock, sleep):
            try:
                scrapes.append(_scrape(address, path, access, prefixes, clock))
            except MaitreError as error:
                if not scrapes:
                    raise
                failures.append(error)
    except KeyboardInterrupt:
        if not scrapes:
            raise
        notes.append(f"interrupted after {format_seconds(clock() - start_s)} of {format_seconds(duration_s)}")
    if failures:
        why = str(failures[-1].args[0])
        notes.append(f"{len(failures)} of {len(scrapes) + len(failures)} scrapes failed, the last one: {why}")
    return collate(scrapes, address.root, notes, instance)


def _ticks(
    duration_s: float, every_s: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> Iterator[None]:
    """Now, and then at every multiple that is not past yet, up to the last one within the duration."""
    start_s = clock()
    yield
    while every_s > 0:
        num_passed = math.floor((clock() - start_s) / every_s + 0.01)  # a sleep may end a little early
        due_s = (num_passed + 1) * every_s
        if due_s > duration_s + 0.01 * every_s:
            return
        sleep(max(0.0, start_s + due_s - clock()))
        yield


def _scrape(address: Address, path: str, access: Access, prefixes: Sequence[str], clock: Callable[[], float]) -> Scrape:
    answer = ask(address, access, path, [])
    now_s = clock()
    _check(address.root + path, answer)
    samples = read_scrape(answer.content.replace(b"\0", b"").decode("utf-8", errors="replace"), prefixes)
    if not samples:
        raise InputError(
            f"{address.root}{path}: no vLLM metrics",
            "name the vLLM server's own /metrics; it shows nothing with --disable-log-stats",
        )
    return Scrape(now_s, samples)


def _check(place: str, answer: HttpAnswer) -> None:
    if answer.status in {401, 403}:
        raise UsageError(f"{place} refuses who asks (HTTP {answer.status})", "give a header or a token")
    if answer.status >= 500:
        raise SystemFailure(f"{place} answers with HTTP {answer.status}", "is it still loading its model? See its log")
    if answer.status != 200:
        where = f", to {answer.location}" if answer.location else ""
        raise InputError(f"{place} answers with HTTP {answer.status}{where}", _HINT)
    if answer.content.lstrip()[:1] == b"<":
        raise InputError(f"{place} answers with a web page; is it a login page?", _HINT)


def _address(url: str) -> tuple[Address, str]:
    try:
        address = read_address(url)
    except UsageError:
        raise UsageError(f"'{url.rpartition('@')[2]}' is not the address of a server", _HINT) from None
    root = address.root.removesuffix("/v1")
    path = "" if "/metrics" in root or address.params else "/metrics"
    return Address(root, address.user, address.password, address.params), path
