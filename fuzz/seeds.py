"""Where the fuzzer begins: what the tests read, taken from their files and from the literals in their code."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contract import MAX_INPUT_BYTES

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("MAITRE_SHARED") or ROOT.parent / "shared")
"""Public cases and traces, as the tests find them; seeds from there are left out where it is missing."""
_MIN_CHARACTERS = 12
_MAX_SEED_BYTES = 1 << 14
_MAX_WORDS = 600
_WORD = re.compile(rb"[A-Za-z_][\w.:/-]{2,40}")


def collect(places: tuple[str, ...]) -> list[bytes]:
    """The seeds of a target, each once; a long file gives its beginning.

    Args:
        places: globs below the repository, or below `SHARED` after `shared:`. Of a Python file its literals count:
            texts, and dictionaries and lists as JSON.
    """
    found: dict[bytes, None] = {}
    for place in places:
        root, pattern = (SHARED, place.removeprefix("shared:")) if place.startswith("shared:") else (ROOT, place)
        for path in sorted(root.glob(pattern)):
            pieces = _literals(path) if path.suffix == ".py" else [_head(path)]
            found |= dict.fromkeys(piece for piece in pieces if 0 < len(piece) <= MAX_INPUT_BYTES)
    return list(found)


def words_in(seeds: list[bytes]) -> list[bytes]:
    """The words of some seeds, the most frequent first: a dictionary for the fuzzer."""
    counts: dict[bytes, int] = {}
    for seed in seeds:
        for word in set(_WORD.findall(seed)):
            counts[word] = counts.get(word, 0) + 1
    return sorted(counts, key=lambda word: -counts[word])[:_MAX_WORDS]


def _head(path: Path) -> bytes:
    """The whole file if it is short, else as many whole lines as a seed may have."""
    content = path.read_bytes()
    if len(content) <= _MAX_SEED_BYTES or b"\0" in content[:4096]:
        return content
    head = content[:_MAX_SEED_BYTES]
    return head[: head.rfind(b"\n") + 1] or head


def _literals(path: Path) -> Iterator[bytes]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant | ast.Dict | ast.List):
            value = _value(node)
            if isinstance(value, str):
                value = value.encode("utf-8", "replace")
            elif isinstance(value, dict | list) and value:
                value = _as_json(value)
            if isinstance(value, bytes) and len(value) >= _MIN_CHARACTERS:
                yield value


def _value(node: ast.AST) -> Any:
    try:
        return ast.literal_eval(node)  # type: ignore[arg-type]  # any node: others are refused
    except (ValueError, TypeError):
        return None


def _as_json(value: Any) -> bytes | None:
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError):
        return None
