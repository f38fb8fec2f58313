"""Figures as findings write them."""

from __future__ import annotations


def percent(share: float) -> str:
    """A share of 1, with a decimal only where it is small."""
    return f"{100 * share:.1f}%" if 0 < share < 0.095 else f"{100 * share:.0f}%"


def many(number: int, noun: str) -> str:
    """A number with its noun: 1 engine, 2 engines."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def per_minute(rate: float) -> str:
    """A small rate."""
    return f"{rate:.1f} a minute" if rate < 99 else f"{rate:,.0f} a minute"


def milliseconds(seconds: float) -> str:
    """A latency."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def span(seconds: float) -> str:
    """A length of time."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} d"
