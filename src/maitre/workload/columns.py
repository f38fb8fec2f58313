"""Which column of a request table holds what: asked for by name, or recognised by the names that the field uses."""

from __future__ import annotations

import re
from difflib import SequenceMatcher, get_close_matches
from typing import TYPE_CHECKING, Literal, get_args

from maitre.errors import InputError
from maitre.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

TimeUnit = Literal["s", "ms", "us", "ns"]

# Spelling is compared in lower case without separators and units; dotted paths match by their last parts. Sources: vLLM
# and OpenAI usage (prompt_tokens), Anthropic and OpenTelemetry gen_ai.usage (input_tokens), Azure LLM inference traces
# (ContextTokens), vidur (num_prefill_tokens), BurstGPT ("Request tokens"), Mooncake (input_length), LiteLLM, Langfuse.
PROMPT_NAMES = (
    *("prompttokens", "inputtokens", "numprompttokens", "numinputtokens", "numprefilltokens", "prefilltokens"),
    *("contexttokens", "numcontexttokens", "requesttokens", "numrequesttokens", "inputlength", "promptlength"),
    *("inputlen", "promptlen", "prompttokencount", "inputtokencount", "prompttokenscount", "inputtokenscount"),
    *("tokensprompt", "tokensin", "tokensinput", "inputusage", "tokencountprompt", "isl"),
)
OUTPUT_NAMES = (
    *("outputtokens", "completiontokens", "numoutputtokens", "numcompletiontokens", "numdecodetokens"),
    *("decodetokens", "generatedtokens", "numgeneratedtokens", "generationtokens", "numgenerationtokens"),
    *("responsetokens", "numresponsetokens", "outputlength", "completionlength", "generationlength", "responselength"),
    *("outputlen", "completionlen", "completiontokencount", "outputtokencount", "candidatestokencount"),
    *("outputtokenscount", "completiontokenscount", "tokenscompletion", "tokensout", "tokensoutput", "outputusage"),
    *("tokencountcompletion", "osl"),
)
TIME_NAMES = (
    *("timestamp", "arrivaltime", "arrivedat", "arrival", "arrivaltimestamp", "starttime", "starttimestamp"),
    *("requestcreatedat", "createdat", "created", "requesttimestamp", "startedat", "time", "datetime", "ts", "date"),
)
END_NAMES = ("endtime", "endtimestamp", "finishedat", "completedat", "endedat", "finishtime", "completiontime")
LATENCY_NAMES = (
    *("latency", "e2elatency", "endtoendlatency", "requestlatency", "requestduration", "duration", "elapsedtime"),
    *("responsetime", "delay", "e2e"),
)
FIRST_NAMES = ("completionstarttime", "firsttokentime", "firsttokenat", "firsttokentimestamp")
TTFT_NAMES = ("ttft", "timetofirsttoken", "timetofirstchunk", "firsttokenlatency")
HASH_NAMES = ("hashids",)

_UNIT_WORDS: dict[str, TimeUnit] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "usec", "micros", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nsec", "nanos", "nanoseconds"), "ns"),
}
_UNIT_SUFFIX = re.compile(rf"(?:[\s_(\[-]+|(?<=[a-z])(?=[A-Z]))(?i:({'|'.join(_UNIT_WORDS)}))[)\]]?$")


_MAX_NAME = 500
"""Characters of a name that may be known; the time to look for a unit grows with the square of them."""
_MAX_SHOWN = 100
"""Characters of a name in a message."""


class Columns(Record):
    """Column names as the caller gives them; None is guessed. Nested JSON fields are written `usage.prompt_tokens`.

    A time or latency column may end in its unit: `wait:ms` (s, ms, us or ns); `none` leaves the column out.
    """

    prompt: str | None = None
    output: str | None = None
    time: str | None = None
    latency: str | None = None


class TimedColumn(Record):
    """A column of times or durations."""

    name: str
    unit: TimeUnit | None
    """None when neither the caller nor the name says it."""
    asked: bool = False
    """Whether the caller named the column, so that a row without it is no usable request."""


class ChosenColumns(Record):
    """The columns that a request table is read by; a role without a column is None."""

    layout: str
    """What the table was recognised as, in words."""
    prompt: str
    output: str
    time: TimedColumn | None
    end: TimedColumn | None
    latency: TimedColumn | None
    first: TimedColumn | None
    """When the first token came; None where `ttft` is there."""
    ttft: TimedColumn | None
    """How long it took."""
    hashes: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """Every column to read, each once."""
        timed = (column.name for column in (self.time, self.end, self.latency, self.first, self.ttft) if column)
        return tuple(dict.fromkeys((self.prompt, self.output, *timed, *((self.hashes,) if self.hashes else ()))))


def choose_columns(names: Sequence[str], asked: Columns, source: str) -> ChosenColumns:
    """Choose the columns of a table whose columns are `names`.

    Args:
        names: the table's columns; nested fields as dotted paths.
        asked: what the caller named.
        source: the table's name in error messages.

    Raises:
        InputError: a named column does not exist, or the lengths' columns are not recognised; lists the columns.
    """
    prompt = _length_column("prompt", asked.prompt, PROMPT_NAMES, names, source)
    output = _length_column("output", asked.output, OUTPUT_NAMES, names, source)
    if prompt == output:
        raise InputError(
            f"{source}: column '{prompt}' cannot hold both prompt and output lengths", _columns_hint(names)
        )
    time = _timed_column(asked.time, TIME_NAMES, names, source)
    latency = _timed_column(asked.latency, LATENCY_NAMES, names, source)
    ttft = _timed_column(None, TTFT_NAMES, names, source)
    hashes = _guess(names, HASH_NAMES) if spelling(prompt) == "inputlength" else None
    layout, time = _recognise_layout(names, prompt, time, hashes)
    return ChosenColumns(
        layout=layout,
        prompt=prompt,
        output=output,
        time=time,
        end=_timed_column(None, END_NAMES, names, source) if latency is None and time else None,
        latency=latency,
        first=_timed_column(None, FIRST_NAMES, names, source) if ttft is None and time else None,
        ttft=ttft,
        hashes=hashes,
    )


def spelling(name: str) -> str:
    """A column name without its unit, case and separators: `Arrival-Time (ms)` is `arrivaltime`."""
    return "" if len(name) > _MAX_NAME else re.sub(r"[^a-z0-9]", "", _UNIT_SUFFIX.sub("", name.strip()).lower())


def _recognise_layout(
    names: Sequence[str], prompt: str, time: TimedColumn | None, hashes: str | None
) -> tuple[str, TimedColumn | None]:
    if spelling(prompt) == "contexttokens" and "GeneratedTokens" in names:
        return "Azure LLM inference trace", time
    if {"Request tokens", "Response tokens", "Log Type"} <= set(names):
        return "BurstGPT trace", time
    if "call_type" in names:
        return "LiteLLM log", time
    if hashes is None:
        return "request table", time
    # Bailian has Mooncake's names, but seconds; Mooncake's time stamps are milliseconds from 0
    bailian = "chat_id" in names
    if time and time.unit is None:
        time = time.model_copy(update={"unit": "s" if bailian else "ms"})
    return ("Bailian trace" if bailian else "Mooncake trace"), time


def _length_column(role: str, asked: str | None, known: Sequence[str], names: Sequence[str], source: str) -> str:
    if asked is not None:
        return _find(asked, names, source)
    found = _guess(names, known)
    if found is None:
        candidates = _likeliest(names, known)
        likely = f"; likeliest: {', '.join(candidates)}" if candidates else ""
        raise InputError(
            f"{source}: no column is recognised as the {role} length", f"{_columns_hint(names, role)}{likely}"
        )
    return found


def _timed_column(asked: str | None, known: Sequence[str], names: Sequence[str], source: str) -> TimedColumn | None:
    if asked is None:
        name = _guess(names, known)
        return TimedColumn(name=name, unit=_unit_of(name)) if name else None
    if asked == "none" and "none" not in names:
        return None
    name, _, unit = asked.rpartition(":")
    if name and asked not in names and unit in get_args(TimeUnit):
        return TimedColumn.model_validate({"name": _find(name, names, source), "unit": unit, "asked": True})
    name = _find(asked, names, source)
    return TimedColumn(name=name, unit=_unit_of(name), asked=True)


def _unit_of(name: str) -> TimeUnit | None:
    match = _UNIT_SUFFIX.search(name[-_MAX_NAME:].strip())
    return _UNIT_WORDS[match[1].lower()] if match else None


def _find(asked: str, names: Sequence[str], source: str) -> str:
    if asked in names:
        return asked
    alike = [name for name in names if name.strip().lower() == asked.strip().lower()]
    if len(alike) == 1:
        return alike[0]
    close = get_close_matches(asked, [name for name in names if len(name) <= _MAX_SHOWN], n=3, cutoff=0.5)
    likely = f"; likeliest: {', '.join(close)}" if close else ""
    raise InputError(f"{source}: no column '{asked}'", f"{_columns_hint(names)}{likely}")


def _guess(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The column with the best-known spelling; of equals the least nested one."""
    ranks = []
    for name in names:
        parts = name.split(".")
        tails = {spelling(".".join(parts[start:])) for start in range(len(parts))}
        ranks += [(known.index(tail), len(parts), name) for tail in tails if tail in known]
    return min(ranks, key=lambda rank: rank[:2])[2] if ranks else None


def _likeliest(names: Sequence[str], known: Sequence[str]) -> list[str]:
    def likeness(name: str) -> float:
        return max(SequenceMatcher(None, spelling(name.rpartition(".")[2]), other).ratio() for other in known)

    candidates = [name for name in names[:200] if len(name) <= _MAX_SHOWN]
    scored = sorted(((likeness(name), name) for name in candidates), key=lambda pair: -pair[0])
    return [name for score, name in scored[:3] if score >= 0.6]


def _columns_hint(names: Sequence[str], role: str | None = None) -> str:
    shown = ", ".join(name[:_MAX_SHOWN] for name in names[:20]) + (
        f" and {len(names) - 20} more" if len(names) > 20 else ""
    )
    return (f"name it with --{role}-column; " if role else "") + f"the columns are {shown}"
