"""Rows that are no request to the engine, whatever their lengths: failed calls, cached answers, embeddings, copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import polars as pl

from maitre.workload.columns import spelling

NO_MODEL_CALL = "no model call"
"""The reason of rows that count as neither kept nor dropped."""


class RowRule(NamedTuple):
    """One column, and which of its values make a row no request to the engine."""

    names: tuple[str, ...]
    """Spellings of the column's last part."""
    reason: str
    applies: Callable[[pl.Expr], pl.Expr]
    """Of the column as lower-case text; null counts as no."""


_ERROR_WORDS = ("failure", "failed", "fail", "error", "errored", "cancelled", "canceled", "aborted", "timeout")
_NOTHING = ("", "null", "none", "false", "0", "{}", "[]", "nan")
_PATH_NAMES = ("path", "url", "uri", "endpoint", "route", "requestpath", "requesturi", "httppath", "httproute")
_ROUTE_END = r"(?:[? ]|$)"

# Sources: LiteLLM SpendLogs and StandardLoggingPayload (status, cache_hit, call_type), OpenAI's Batch API
# (response.status_code, error), HTTP access logs (status), the routes of OpenAI's API and of vLLM's server (path).
_RULES = (
    RowRule(
        _PATH_NAMES,
        NO_MODEL_CALL,
        lambda text: text.str.contains(
            rf"/(?:health|ping|load|metrics|models|version|tokenize|detokenize|docs){_ROUTE_END}"
        ),
    ),
    RowRule(
        _PATH_NAMES,
        "no text generation",
        lambda text: text.str.contains(
            rf"/(?:embeddings?|rerank|score|pooling|classify|moderations|images/\w+|audio/\w+){_ROUTE_END}"
        ),
    ),
    RowRule(
        ("calltype",),
        "no text generation",
        lambda text: text.str.contains("embedding|rerank|moderation|image|speech|transcription"),
    ),
    RowRule(
        (
            "status",
            "statuscode",
            "httpstatus",
            "httpstatuscode",
            "responsestatus",
            "responsecode",
            "responsestatuscode",
        ),
        "failed call",
        lambda text: text.is_in(_ERROR_WORDS) | (text.cast(pl.Float64, strict=False) >= 400),
    ),
    RowRule(("error", "errormessage", "exception"), "failed call", lambda text: ~text.is_in(_NOTHING)),
    RowRule(("cachehit",), "answered from the gateway's cache", lambda text: text == "true"),
)
_STREAM_NAMES = ("stream", "streaming", "isstream")
UNCOUNTED_STREAM = "streamed call without output usage, the gateway's count is missing or an estimate"
"""The reason of answers that were streamed, but whose tokens the gateway did not see."""
UNCOUNTED_HINT = (
    "set stream_options.include_usage in the clients or always in the gateway, or measure vLLM's own length histograms "
    "(vllm:request_prompt_tokens, vllm:request_generation_tokens)"
)
_ID_NAMES = ("requestid",)
_COPY = "copy of a row with the same request_id"


def rule_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The columns of a table that the rules look at."""
    wanted = {name for rule in _RULES for name in rule.names} | {*_STREAM_NAMES}
    if _is_litellm(names):
        wanted |= {*_ID_NAMES}
    return tuple(name for name in names if _last(name) in wanted and name.count(".") <= 1)


def read_rules(frame: pl.DataFrame, output: str) -> dict[str, pl.Series]:
    """Which rows each reason rules out, in the order of precedence.

    Args:
        frame: the table's columns, as many as there are.
        output: the column of output lengths.

    Returns:
        One Boolean series of n rows a reason that applies to any row.
    """
    found: dict[str, pl.Series] = {}
    for rule in _RULES:
        for name in frame.columns:
            if name in rule_columns(frame.columns) and _last(name) in rule.names:
                _add(found, rule.reason, frame.select(rule.applies(_text(frame, name))).to_series())
    if _is_litellm(frame.columns):
        for name in (name for name in frame.columns if _last(name) in _ID_NAMES):
            usable = ~pl.any_horizontal(*found.values()) if found else pl.lit(value=True)
            ids = frame.select(pl.when(usable).then(pl.col(name))).to_series()
            _add(found, _COPY, ~ids.is_first_distinct() & ids.is_not_null())
    for name in (name for name in frame.columns if _last(name) in _STREAM_NAMES):
        unknown = _text(frame, output).fill_null("0").cast(pl.Float64, strict=False).fill_null(0) == 0
        _add(found, UNCOUNTED_STREAM, frame.select((_text(frame, name) == "true") & unknown).to_series())
    return found


def _is_litellm(names: Sequence[str]) -> bool:
    return "call_type" in names


def _last(name: str) -> str:
    return spelling(name.rpartition(".")[2])


def _text(frame: pl.DataFrame, name: str) -> pl.Expr:
    if frame[name].dtype.is_nested():
        return pl.lit(None, pl.String)
    return pl.col(name).cast(pl.String, strict=False).str.strip_chars().str.to_lowercase()


def _add(found: dict[str, pl.Series], reason: str, rows: pl.Series) -> None:
    rows = rows.fill_null(value=False)
    if len(rows) and rows.any():
        found[reason] = found[reason] | rows if reason in found else rows
