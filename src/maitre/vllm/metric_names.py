"""Any spelling of a vLLM sample's name, to vLLM's own: what relabelling, Ray and collectors make of one.

Seen are: `vllm_`, `vllm.` and upper case for `vllm:`; a prefix before it (Ray Serve writes `ray_vllm_`); counters
without `_total` (OpenTelemetry's Prometheus receiver; Ray shows each counter both ways) or with two; `_ratio` after a
gauge (OpenTelemetry's Prometheus exporters); times without their unit, which went into the metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from maitre.vllm.metric_families import BY_NAME, FAMILIES, NEVER_EXPOSED, Family

_HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count", "_created")
_UNIT = re.compile(r"_(?:milli)?seconds$")
_OWN_PREFIX = re.compile(r"(?:[^:]*[^a-z0-9:])?vllm[^a-z0-9](?=[^:]+$)", re.IGNORECASE)
_MAX_NAME = 256
"""Characters; a longer name is none of vLLM's, whatever stands before it."""


class SampleName(NamedTuple):
    """What a name means."""

    name: str
    """vLLM's own, with the suffix of the sample."""
    family: Family
    is_alias: bool
    """No version of vLLM ever exposed the name that was asked for; it is often quoted."""


def canonical_name(name: str, prefixes: Sequence[str] = ()) -> str | None:
    """The name that vLLM itself gives a sample; None for what is none of its, or what a recording rule made of it.

    Args:
        name: in any spelling; of a histogram also without a suffix.
        prefixes: further beginnings that stand for `vllm:`, where a relabelling dropped it (`llm_` for
            `llm_num_requests_running`).
    """
    found = resolve_name(name, prefixes)
    return None if found is None else found.name


def resolve_name(name: str, prefixes: Sequence[str] = ()) -> SampleName | None:
    """As `canonical_name`, with the family, and whether the name is one that never was."""
    return _resolve(name, tuple(prefixes)) if len(name) <= _MAX_NAME else None


def spellings(family: Family) -> Iterator[tuple[str, str]]:
    """Each way to write a sample of a family, in lower case and without `vllm:`, and vLLM's own name of that sample."""
    bare = family.name.removeprefix("vllm:")
    if family.kind == "histogram":
        stems = {bare, _UNIT.sub("", bare), bare.removesuffix("_total")}
        yield from ((stem, family.name) for stem in stems)
        yield from ((stem + end, family.name + end) for stem in stems for end in _HISTOGRAM_SUFFIXES)
    elif family.kind == "counter":
        stem = bare.removesuffix("_total")
        yield from ((stem + end, family.name) for end in ("", "_total", "_total_total"))
        yield from ((start + "_created", f"vllm:{stem}_created") for start in (stem, bare))
    else:
        yield from ((bare + end, family.name) for end in ("", "_ratio"))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower())


_OWN = {written: (own, family) for family in FAMILIES for written, own in spellings(family)}
_ALIASES = {_plain(alias.removeprefix("vllm:")): BY_NAME[own] for alias, own in NEVER_EXPOSED.items()}


@lru_cache(maxsize=4096)
def _resolve(name: str, prefixes: tuple[str, ...]) -> SampleName | None:
    for rest in _rests(name, prefixes):
        if rest in _OWN:
            return SampleName(*_OWN[rest], is_alias=False)
        if rest in _ALIASES:
            return SampleName(_ALIASES[rest].name, _ALIASES[rest], is_alias=True)
    return None


def _rests(name: str, prefixes: tuple[str, ...]) -> Iterator[str]:
    """What follows the prefix, in plain letters. A colon in it, or before `vllm`, is a recording rule's."""
    if match := _OWN_PREFIX.match(name):
        yield _plain(name[match.end() :])
    for prefix in prefixes:
        if prefix and name.lower().startswith(prefix.lower()) and ":" not in name[len(prefix) :]:
            yield _plain(name[len(prefix) :])
