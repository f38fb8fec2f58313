"""What is asked of a Prometheus: a window of time, and which of its series count."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from maitre.errors import UsageError
from maitre.workload.langfuse import Selection

MODEL_LABEL = "model_name"
"""vLLM's own label (all versions)."""
_DEFAULT_S = 24 * 3600
"""A window that holds a day's peak, and that every server keeps."""
_MIN_S = 120
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

Matcher = tuple[str, tuple[str, ...]]
"""A label, and the values of which it may have any."""


@dataclass(frozen=True, slots=True)
class Question:
    """A window, and the series in it."""

    start_s: float
    """Since the epoch."""
    end_s: float
    matchers: tuple[Matcher, ...] = ()

    @property
    def window_s(self) -> int:
        """Length of the window in whole seconds, as PromQL writes ranges."""
        return round(self.end_s - self.start_s)

    def of_model(self, model: str) -> Question:
        """The same of one model alone."""
        others = tuple(matcher for matcher in self.matchers if matcher[0] != MODEL_LABEL)
        return Question(self.start_s, self.end_s, (*others, (MODEL_LABEL, (model,))))

    def __str__(self) -> str:
        start, end = (datetime.fromtimestamp(moment, UTC) for moment in (self.start_s, self.end_s))
        return f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"


def read_question(selection: Selection, now: datetime) -> Question:
    """Read what the user asks for; without a window the last 24 hours.

    Args:
        selection: `where` holds LABEL=VALUE with any label; `model` stands for `model_name`.
        now: with a zone.

    Raises:
        UsageError: a time or a filter cannot be read, or the window is shorter than two minutes.
    """
    since_ms, until_ms = selection.bounds_ms(now)
    end_s = now.timestamp() if until_ms is None else min(until_ms / 1000, now.timestamp())
    start_s = end_s - _DEFAULT_S if since_ms is None else since_ms / 1000
    if end_s - start_s < _MIN_S:
        raise UsageError(
            "the window is shorter than two minutes, or lies in the future", "ask for a longer one: --since 1h"
        )
    return Question(start_s, end_s, _read_matchers(selection.where))


def selector(name: str, matchers: Sequence[Matcher]) -> str:
    """PromQL that selects one metric, whatever characters its name has."""
    conditions = [f"__name__={_quote(name)}"]
    for label, values in matchers:
        alternatives = "|".join(re.sub(r"([.+*?^$()\[\]{}|\\])", r"\\\1", value) for value in values)
        conditions.append(f"{label}={_quote(values[0])}" if len(values) == 1 else f"{label}=~{_quote(alternatives)}")
    return f"{{{','.join(conditions)}}}"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _read_matchers(where: Sequence[str]) -> tuple[Matcher, ...]:
    values: dict[str, list[str]] = {}
    for text in where:
        label, equals, value = text.partition("=")
        if not equals or not value or not _LABEL.fullmatch(label):
            raise UsageError(f"--where {text}: no filter", "write LABEL=VALUE, such as model=NAME or namespace=prod")
        values.setdefault(MODEL_LABEL if label == "model" else label, []).append(value)
    return tuple((label, tuple(found)) for label, found in values.items())
