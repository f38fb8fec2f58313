"""ServeGen's published clients (`chunk-N-dataset.json`): length distributions, from which requests are drawn."""

from __future__ import annotations

import csv
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitre.errors import InputError
from maitre.files import parse_json
from maitre.records import Workload

_HEAD = re.compile(rb'\s*\{\s*"\d+"\s*:\s*\{[^{}]*"(?:in|out)put_tokens"\s*:\s*"\{')
_START = re.compile(r"[0-9]{1,12}")
_BIN = re.compile(r"(?<![\d.])([0-9]{1,8}): ([0-9]{1,20}(?:\.[0-9]{0,40})?(?:[eE]-[0-9]{1,3})?)(?![\w.])")
"""A length in tokens and its probability."""
_LENGTHS = ("input_tokens", "output_tokens")
_NOT_LENGTHS = ("reason_ratio",)
_Distribution = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Lengths and their probabilities, each of shape (k,)."""


def looks_like_servegen(content: bytes) -> bool:
    """Whether a text holds length distributions by time window."""
    return _HEAD.match(content[:4096]) is not None


def draw_servegen(content: bytes, source: str, name: str, num_requests: int, seed: int) -> Workload:
    """Draw requests from one client's distributions.

    Prompt and output lengths are drawn independently of each other, for the file has them apart. Windows (6 h) count by
    the request rate in the `chunk-N-trace.csv` beside the file, where there is one, else alike.

    Args:
        content: UTF-8 JSON: by window start in seconds, each length's probabilities as a Python dictionary in a string.
        source: the file's path.
        name: the workload's name.
        num_requests: how many to draw.
        seed: of the draw.

    Raises:
        InputError: broken JSON, or no window has both lengths.
    """
    usable, others = _read_windows(content, source)
    starts = sorted(usable)
    shares, basis = _shares(starts, source)
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(num_requests, shares).tolist()
    drawn = [
        [rng.choice(lengths, size=count, p=weights) for lengths, weights in usable[start]]
        for start, count in zip(starts, counts, strict=True)
    ]
    order = rng.permutation(num_requests)
    prompt, output = (np.concatenate([window[side] for window in drawn])[order] for side in (0, 1))
    how = f"{num_requests:,} requests drawn (seed {seed}) from {len(starts)} windows weighted {basis}"
    missing = f", without {', '.join(others)}" if others else ""
    return Workload(
        name=name,
        source=f"{source}: ServeGen client, {how}, lengths independent of each other{missing}",
        prompt_tokens=prompt,
        output_tokens=output,
    )


def _read_windows(content: bytes, source: str) -> tuple[dict[int, tuple[_Distribution, _Distribution]], list[str]]:
    """Both distributions by window start in seconds, and what else the windows count."""
    try:
        windows = msgspec.json.decode(content, type=dict[str, dict[str, Any]])
    except (msgspec.MsgspecError, RecursionError):
        parse_json(content.decode(errors="replace"), source)
        raise InputError(f"{source}: not a ServeGen data set", "see its README for the format") from None
    usable = {
        int(start): (_distribution(window["input_tokens"]), _distribution(window["output_tokens"]))
        for start, window in windows.items()
        if _START.fullmatch(start) and all(_has_bins(window.get(length)) for length in _LENGTHS)
    }
    if not usable:
        raise InputError(f"{source}: no window has both input_tokens and output_tokens", "name another chunk")
    return usable, sorted({key for window in windows.values() for key in window} - {*_LENGTHS, *_NOT_LENGTHS})


def _has_bins(value: Any) -> bool:
    return isinstance(value, str) and _BIN.search(value) is not None


def _distribution(text: str) -> _Distribution:
    """The lengths of at least one token and their probabilities, made to add up to 1."""
    bins = [(int(length), float(weight)) for length, weight in _BIN.findall(text)]
    kept = [(max(length, 1), weight) for length, weight in bins if weight > 0] or [(1, 1.0)]
    weights = np.array([weight for _, weight in kept])
    return np.array([length for length, _ in kept], dtype=np.int64), weights / weights.sum()


def _shares(starts: list[int], source: str) -> tuple[NDArray[np.float64], str]:
    """How much each window counts, and by what."""
    rates = _read_rates(Path(source.removesuffix("-dataset.json") + "-trace.csv"))
    edges = [*starts, starts[-1] + (starts[-1] - starts[-2] if len(starts) > 1 else 21_600)]
    sums = np.array([sum(rate for at, rate in rates if low <= at < high) for low, high in pairwise(edges)])
    if sums.sum() > 0:
        return sums / sums.sum(), "by their rates"
    return np.full(len(starts), 1 / len(starts)), "alike"


def _read_rates(path: Path) -> list[tuple[float, float]]:
    """Time and rate of each row of a trace file; nothing when there is no such file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [(float(row[0]), max(float(row[1]), 0.0)) for row in csv.reader(file) if len(row) > 1]
    except (OSError, ValueError):
        return []
