"""Typed access to the fields of a config.json, with messages that name the file and the field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from maitre.errors import InputError

TAKE_ORIGINAL = "take config.json from the model's own repository"

NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal models keep their language model, in the order of Hugging Face's `get_text_config`."""

_OUTER = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings", "architectures", "_name_or_path")

_MOST = {"num_hidden_layers": 10_000}
"""Beyond these a number is a mistake; a thousand million for the others."""

_Value = TypeVar("_Value", int, bool)


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields that describe the language model."""

    values: dict[str, Any]
    source: str
    is_part: bool = False
    """They are those of a language model within a larger one."""

    @classmethod
    def of(cls, config: dict[str, Any], source: str) -> Fields:
        """The language model's own fields; those of the whole model where it is no part of a larger one."""
        for name in NESTED:
            if isinstance(inner := config.get(name), dict):
                outer = {field: config[field] for field in _OUTER if field in config}
                found = cls.of(outer | inner | {"architectures": config.get("architectures")}, source)
                return cls(found.values, source, is_part=True)
        return cls(config, source)

    def get(self, field: str) -> Any:
        """The raw value; None where the field is missing."""
        return self.values.get(field)

    def count(self, *names: str, default: int | None = None) -> int:
        """A whole number of at least 1, by the first of its names that is present.

        Raises:
            InputError: it is missing without a default, or something else.
        """
        field = next((name for name in names if self.values.get(name) is not None), names[0])
        return self._typed(field, default, (int, "a whole number of at least 1"))

    def flag(self, field: str, *, default: bool = False) -> bool:
        """True or false.

        Raises:
            InputError: it is something else.
        """
        return self._typed(field, default, (bool, "true or false"))

    def inner(self, field: str) -> Fields:
        """The object that a field holds.

        Raises:
            InputError: it is no object.
        """
        value = self.values.get(field)
        if not isinstance(value, dict):
            raise self.wrong(field, "an object")
        return Fields(value, f"{self.source}: {field}")

    def words(self, field: str, length: int) -> list[str] | None:
        """A list of one word a layer; None where the field is missing.

        Raises:
            InputError: it is no such list.
        """
        value = self.values.get(field)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length:
            raise self.wrong(field, f"a list of {length} layers")
        return [str(word) for word in value[:length]]

    def indices(self, field: str) -> list[int]:
        """A list of layer numbers.

        Raises:
            InputError: it is no such list.
        """
        value = self.values.get(field)
        if not isinstance(value, list) or any(type(index) is not int or index < 0 for index in value):
            raise self.wrong(field, "a list of layer numbers")
        return value

    def wrong(self, field: str, expected: str) -> InputError:
        """The error to raise for a field that is not what was expected."""
        value = self.values.get(field)
        shown = "missing" if value is None else repr(value)[:80]
        return InputError(f"{self.source}: {field} is {shown}, {expected} was expected", TAKE_ORIGINAL)

    def _typed(self, field: str, default: _Value | None, kind: tuple[type[_Value], str]) -> _Value:
        value = self.values.get(field)
        if value is None and default is not None:
            return default
        expected, words = kind
        if type(value) is not expected or (expected is int and not 1 <= value <= _MOST.get(field, 10**9)):
            raise self.wrong(field, words)
        return value
