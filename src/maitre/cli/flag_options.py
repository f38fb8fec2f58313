"""Flags beside the two dials that join the grid: `--kv-cache-dtype auto,fp8`, or `--vary kv-cache-dtype=fp8`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitre.records import Flags

VARIED = ("kv_cache_dtype", "gpu_memory_utilization", "long_prefill_token_threshold", "tensor_parallel_size")
"""In the order in which a cell lists them. Each takes a fresh start of the server."""

_OPTIONS = {f"--{name.replace('_', '-')}": name.replace("_", "-") for name in VARIED}


def unfold_lists(words: Sequence[str]) -> list[str]:
    """Write a list of values as the first one, for the server as it is, and the others to vary.

    `--kv-cache-dtype auto,fp8` becomes `--kv-cache-dtype auto --vary kv-cache-dtype=fp8`.
    """
    unfolded: list[str] = []
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if option not in _OPTIONS:
            unfolded.append(word)
            continue
        value = value if equals else next(rest, "")
        first, comma, others = value.partition(",")
        unfolded += [option, first, *(["--vary", f"{_OPTIONS[option]}={others}"] if comma else [])]
    return unfolded


def parse_flags(varied: Sequence[str]) -> list[Flags]:
    """All combinations of the values and of leaving each flag as it is, which is the first.

    Args:
        varied: `NAME=VALUE,VALUE`, one a flag.

    Raises:
        UsageError: a flag that cannot be varied, or a value that it cannot have.
    """
    values: dict[str, list[str]] = {}
    for text in varied:
        for name, value in _read(text):
            values.setdefault(name, []).append(value)
    choices = [[None, *((name, value) for value in dict.fromkeys(values[name]))] for name in VARIED if name in values]
    return [tuple(flag for flag in chosen if flag is not None) for chosen in product(*choices)]


def _read(text: str) -> Iterator[tuple[str, str]]:
    from pydantic import ValidationError

    from maitre.errors import UsageError
    from maitre.records import ServerConfig

    option, _, values = text.partition("=")
    name = option.strip("-").replace("-", "_")
    if name not in VARIED or not values:
        known = ", ".join(_OPTIONS.values())
        raise UsageError(f"'{text}' is nothing to vary", f"write NAME=VALUE,VALUE with one of {known}")
    for value in values.split(","):
        try:
            ServerConfig.model_validate(
                {"model": "any", "max_model_len": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1, name: value}
            )
        except ValidationError as error:
            what = f"{option} cannot be '{value}': {error.errors()[0]['msg']}"
            raise UsageError(what, "see vLLM's documentation of the flag") from None
        yield name, value
