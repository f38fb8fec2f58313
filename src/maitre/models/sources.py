"""Find a model: a directory, a config.json, or a name from the shipped table."""

from __future__ import annotations

import difflib
import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from maitre.errors import InputError, UsageError
from maitre.files import read_json
from maitre.models.config import parse_attention_config
from maitre.models.geometry import AttentionGeometry, Checkpoint, Model
from maitre.models.weight_files import weight_bytes_in, with_quantization
from maitre.models.weights_config import QKV_BIAS, parse_checkpoint, parse_model_config


def load_model(text: str) -> Model:
    """The model that `text` names.

    Args:
        text: a directory with a config.json, a config.json, or a name from `known_models`.

    Raises:
        UsageError: no such path and no such name.
        InputError: the file is broken or a field is missing.
        UnsupportedError: an architecture that is not covered.
    """
    config, source, name, directory = _find(text)
    return parse_model_config(config, source, name, weight_bytes_in(directory) if directory else None)


def load_checkpoint(text: str) -> Checkpoint:
    """Like `load_model`, for what fills a GPU: also models with windows, and those whose weights only files tell."""
    config, source, name, directory = _find(text)
    return parse_checkpoint(config, source, name, weight_bytes_in(directory) if directory else None)


def load_attention(text: str) -> AttentionGeometry:
    """Like `load_model`, for what the KV cache alone needs: works without the MLP's and the vocabulary's size."""
    config, source, name, _ = _find(text)
    return parse_attention_config(config, source, name)


def known_models() -> list[str]:
    """Names of the shipped models whose weights are counted: those of `load_model`."""
    return sorted(name for name, entry in _table().items() if entry["architectures"][0] in QKV_BIAS)


def known_caches() -> list[str]:
    """Names of all shipped models: those of `load_attention`."""
    return sorted(_table())


def _find(text: str) -> tuple[dict[str, Any], str, str | None, Path | None]:
    """The config, its source, the model's name, and the directory whose weight files count."""
    path = Path(text)
    try:
        is_directory, is_file = bool(text) and path.is_dir(), path.is_file()
    except OSError:  # no path of this system, for example too long
        is_directory = is_file = False
    if is_directory:
        config = with_quantization(_read_config(path / "config.json"), path)
        return config, str(path / "config.json"), path.resolve().name, path
    if is_file or path.suffix == ".json":
        return _read_config(path), str(path), None, None
    table = _table()
    spelled = {_fold(name): name for name in table} | {_fold(name.rpartition("/")[2]): name for name in table}
    if name := spelled.get(_fold(text)) or spelled.get(_fold(text.rpartition("/")[2])):
        entry = dict(table[name])
        return entry, f"the shipped facts of {name} ({entry.pop('source')})", name, None
    near = difflib.get_close_matches(_fold(text), spelled, n=3, cutoff=0.5)
    raise UsageError(
        f"'{text}' is no directory, no config.json and no model that ships with maitre",
        (f"did you mean {', '.join(dict.fromkeys(spelled[n] for n in near))}? Otherwise " if near else "")
        + "pass the model's directory or its config.json",
    )


def _fold(name: str) -> str:
    """Spellings that mean the same model: case, separators and an instruct suffix do not matter."""
    folded = "".join(c for c in name.lower() if c.isalnum() or c in "./")
    for suffix in ("instruct", "chat", "base"):
        folded = folded.removesuffix(suffix)
    return folded


@cache
def _table() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = {}
    for file in resources.files("maitre").joinpath("data/models").iterdir():
        if file.name.endswith(".json"):
            entry = json.loads(file.read_text("utf-8"))
            for name in entry.pop("names"):
                table[name] = entry
    return table


def _read_config(path: Path) -> dict[str, Any]:
    config = read_json(path)
    if not isinstance(config, dict):
        raise InputError(f"{path}: a list or a value, a JSON object was expected", "name a model's config.json")
    return config
