"""The metrics that a deployment really has, and how they are spelt there: by a scrape, or by vLLM's version."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from maitre.errors import InputError, UnsupportedError, UsageError
from maitre.vllm.metric_families import FAMILIES, Family
from maitre.vllm.metric_names import resolve_name

NEWEST = "0.33.0"
"""The last version whose families were read (`maitre.vllm.metric_families`)."""
OLDEST = "0.4.2"

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?!\d)(?:[.+\-]?[a-z0-9.+\-]*)")
_SAMPLE = re.compile(r"([A-Za-z_:.][\w:.]*)[ {]")
_PROMQL_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_PREFIX = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*[_:]")
_VLLM = "vllm:"


class InstalledMetrics(NamedTuple):
    """The samples of one deployment."""

    written: Mapping[str, str]
    """vLLM's own name of each sample, and how the deployment writes it."""
    source: str
    """Where that is from, for people."""

    def find(self, *names: str) -> str | None:
        """How the deployment writes the first of these samples that it has; None if it has none of them."""
        return next((self.written[name] for name in names if name in self.written), None)


def metrics_of_version(text: str, prefix: str = _VLLM) -> InstalledMetrics:
    """What a version of vLLM exposes by default.

    Args:
        text: as `vllm --version` prints it; of a later version than `NEWEST`, what that one has.
        prefix: what the deployment writes for `vllm:`.

    Raises:
        UsageError: not a version, or no beginning of a metric's name.
        UnsupportedError: older than `OLDEST`.
    """
    version = _parse(text)
    if version < _parse(OLDEST):
        raise UnsupportedError(f"the metrics of vLLM {text} are not known", f"maitre knows those of {OLDEST} and later")
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"'{prefix}' begins no metric's name", "write it with its last character, such as vllm_")
    names = [name for family in FAMILIES if _is_shown(family, version) for name in _samples(family)]
    said = f"vLLM {text.removeprefix('v')}" + (f" with {prefix} for {_VLLM}" if prefix != _VLLM else "")
    return InstalledMetrics({name: prefix + name.removeprefix(_VLLM) for name in names}, said)


def metrics_of_scrape(text: str, source: str, prefixes: tuple[str, ...] = ()) -> InstalledMetrics:
    """What a deployment exposes.

    Args:
        text: what `/metrics` answers, or Prometheus to `/api/v1/query`, `/series` or `/label/__name__/values`. Only the
            last three know what a relabelling on the way into Prometheus has done to the names.
        source: what to call it.
        prefixes: further beginnings that stand for `vllm:`.

    Raises:
        InputError: no metric of vLLM is in it, or names that PromQL cannot select.
    """
    written: dict[str, str] = {}
    for name in _names(text):
        found = resolve_name(name, prefixes)
        if found is not None and not found.is_alias and _is_plainer(name, written.get(found.name)):
            written[found.name] = name
    if not written:
        hint = "give what /metrics of a vLLM server answers, or Prometheus to /api/v1/label/__name__/values"
        raise InputError(f"{source}: no vLLM metrics", hint)
    if odd := next((name for name in written.values() if not _PROMQL_NAME.fullmatch(name)), None):
        hint = "give the names as Prometheus has them: /api/v1/label/__name__/values"
        raise InputError(f"{source}: '{odd}' is no name that a rule can select", hint)
    return InstalledMetrics(written, source)


def _is_plainer(name: str, other: str | None) -> bool:
    """Whether a spelling is the one to use: of a counter that is shown both ways, the one with `_total`."""
    return other is None or (name.endswith("_total") and not other.endswith("_total"))


def _names(text: str) -> Iterator[str]:
    if text.lstrip()[:1] == "{":
        yield from _api_names(text)
        return
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            yield match[1]


def _api_names(text: str) -> Iterator[str]:
    """The names in an answer of Prometheus' HTTP API: a list of names, of label sets, or a query's result."""
    try:
        data: Any = json.loads(text)["data"]
        rows = data["result"] if isinstance(data, dict) else data
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    for row in rows if isinstance(rows, list) else []:
        labels = row.get("metric", row) if isinstance(row, dict) else {"__name__": row}
        if isinstance(labels, dict) and isinstance(name := labels.get("__name__"), str):
            yield name


def _samples(family: Family) -> list[str]:
    if family.kind != "histogram":
        return [family.name]
    return [family.name + end for end in ("_bucket", "_sum", "_count")]


def _is_shown(family: Family, version: tuple[int, int, int]) -> bool:
    gone = family.last is not None and version > _parse(family.last)
    hidden = family.hidden_since is not None and version >= _parse(family.hidden_since)
    return version >= _parse(family.first) and not gone and not hidden


def _parse(text: str) -> tuple[int, int, int]:
    match = _VERSION.fullmatch(text.strip())
    if not match:
        raise UsageError(f"'{text}' is not a version of vLLM", "write it as `vllm --version` prints it: 0.26.0")
    return int(match[1]), int(match[2]), int(match[3] or 0)
