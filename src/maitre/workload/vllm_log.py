"""vLLM's own log: request and response lines of the versions that carry token ids, else the statistics lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import polars as pl

from maitre.vllm.stats_lines import StatsLine, parse_stats
from maitre.workload.columns import PROMPT_NAMES, spelling
from maitre.workload.no_requests import NoRequestsError, ServerLoad
from maitre.workload.tables import Table, frame_table

_HEAD_BYTES = 1 << 20
_MARKS = re.compile(
    rb"Received request \S+: (?:prompt|params)|Avg prompt throughput: [\d.]+ tokens/s|vLLM API server version \d"
)

# vllm/entrypoints/logger.py. Up to 0.11.0 the request line ends in the prompt's ids; later versions have them in a line
# of level DEBUG, "Request ID details". The prompt stands before them and may say anything, so the last match counts.
_RECEIVED = re.compile(r"Received request (?P<id>\S+?): ")
_DETAILS = re.compile(r"Request (?P<id>\S+) details: prompt: ")
_RESPONSE = re.compile(
    r"Generated response (?P<id>\S+?)(?: \(streaming (?P<part>delta|complete)\))?(?: details)?: output"
)
_FINISHED = re.compile(r"Finished request (?P<id>\S+?)\.")
_PROMPT_IDS = re.compile(r"prompt_token_ids: \[(?P<ids>[\d, ]*)\]")
_OUTPUT_IDS = re.compile(r"output_token_ids: (?:array\([^\[]*)?\[(?P<ids>[\d, ]*)\]")
_MAX_LOG_LEN = re.compile(r"max_log_len['\"]?[=:] ?(?P<length>\d{1,15})\b")

_CLOCK = re.compile(r"(?:(?P<year>\d{4})-)?(?P<month>\d\d)-(?P<day>\d\d)[ T](?P<time>\d\d:\d\d:\d\d)")
_FIRST_YEAR = 2024
"""vLLM's time stamps have no year; in this one every date exists."""

_HINT = (
    "vLLM logs lengths up to 0.11.0 with --enable-log-requests, later only at DEBUG with --enable-log-outputs; better "
    "sources are its OTLP traces (--otlp-traces-endpoint), the gateway's log, or the length histograms of /metrics"
)


@dataclass(slots=True)
class _Request:
    received_s: float | None = None
    finished_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


def looks_like_vllm_log(content: bytes) -> bool:
    """Whether a text has one of vLLM's lines in its first mebibyte, and no header that names lengths."""
    header = content[:_HEAD_BYTES].partition(b"\n")[0].decode(errors="replace")
    if any(spelling(name.strip('" ')) in PROMPT_NAMES for name in re.split(r"[,;|\t]", header)):
        return False
    return _MARKS.search(content[:_HEAD_BYTES]) is not None


def open_vllm_log(content: bytes, source: str) -> Table:
    """Read the requests of a server's log; times have a resolution of one second.

    Args:
        content: UTF-8.
        source: the file's name in error messages.

    Raises:
        NoRequestsError: no request line carries lengths; holds what the statistics lines say.
    """
    requests: dict[str, _Request] = {}
    samples: list[StatsLine] = []
    max_log_len: int | None = None
    for line, seconds in _timed_lines(content):
        if (sample := parse_stats(line)) is not None:
            samples.append(sample)
        elif " request " in line or " response " in line or "details: " in line:
            _note(line, seconds, requests)
        if max_log_len is None and "max_log_len" in line:
            match = _MAX_LOG_LEN.search(line)
            max_log_len = int(match["length"]) if match else None
    if not any(request.prompt_tokens and request.output_tokens for request in requests.values()):
        raise _no_lengths(requests, samples, source)
    return _tabulate(requests, max_log_len, source)


def _timed_lines(content: bytes) -> Iterator[tuple[str, float | None]]:
    """Each line with the time of its stamp, or of the last stamp before it, in seconds."""
    seconds, stamp, year = None, "", _FIRST_YEAR
    for raw in content.split(b"\n"):
        line = raw.decode()
        match = _CLOCK.search(line, 0, 120)
        if match and match[0] != stamp:
            stamp = match[0]
            then = _seconds(match, int(match["year"] or year))
            if then is not None and seconds is not None and not match["year"] and then < seconds - 180 * 86400:
                year += 1  # the log runs over the end of a year
                then = _seconds(match, year)
            seconds = seconds if then is None else then
        yield line, seconds


def _seconds(match: re.Match[str], year: int) -> float | None:
    try:
        moment = datetime.fromisoformat(f"{year}-{match['month']}-{match['day']}T{match['time']}+00:00")
    except ValueError:
        return None
    return (moment - datetime.fromisoformat("2000-01-01T00:00:00+00:00")) / timedelta(seconds=1)


def _note(line: str, seconds: float | None, requests: dict[str, _Request]) -> None:
    """Take down what one line says of a request."""
    if match := _RECEIVED.search(line):
        request = requests.setdefault(match["id"], _Request())
        request.received_s = seconds
        request.prompt_tokens = _count_ids(_PROMPT_IDS, line, match.end()) or request.prompt_tokens
    elif match := _DETAILS.search(line):
        requests.setdefault(match["id"], _Request()).prompt_tokens = _count_ids(_PROMPT_IDS, line, match.end())
    elif match := _RESPONSE.search(line):
        known = _find(requests, match["id"])
        if known:
            known.finished_s = seconds
            num_tokens = _count_ids(_OUTPUT_IDS, line, match.end() - len("output")) or 0
            # a streamed answer is logged in parts, and then, without ids, as a whole
            before = known.output_tokens or 0
            known.output_tokens = (before + num_tokens if match["part"] == "delta" else max(before, num_tokens)) or None
    elif match := _FINISHED.search(line):
        known = _find(requests, match["id"])
        if known:
            known.finished_s = seconds


def _find(requests: dict[str, _Request], name: str) -> _Request | None:
    """A request by its id; /v1/completions adds the prompt's number to it: `cmpl-1` is received as `cmpl-1-0`."""
    return requests.get(name) or requests.get(f"{name}-0")


def _count_ids(pattern: re.Pattern[str], line: str, start: int) -> int | None:
    last = None
    for last in pattern.finditer(line, start):  # noqa: B007 - the last match is wanted
        pass
    return last["ids"].count(",") + 1 if last and last["ids"].strip() else None


def _tabulate(requests: dict[str, _Request], max_log_len: int | None, source: str) -> Table:
    kept = list(requests.values())
    num_skipped: dict[str, int] = {}
    if max_log_len:
        whole = [
            request for request in kept if max(request.prompt_tokens or 0, request.output_tokens or 0) < max_log_len
        ]
        if len(whole) < len(kept):
            num_skipped["token ids cut by --max-log-len"] = len(kept) - len(whole)
        kept = whole
    start_s = min((request.received_s for request in kept if request.received_s is not None), default=None)
    columns = {
        "prompt_tokens": [request.prompt_tokens for request in kept],
        "output_tokens": [request.output_tokens for request in kept],
    }
    frame = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Int64))
    if start_s is not None:
        frame = frame.with_columns(
            pl.Series("arrival_s", [_since(request.received_s, start_s) for request in kept], pl.Float64),
            pl.Series("finish_time_s", [_since(request.finished_s, start_s) for request in kept], pl.Float64),
        )
    return frame_table(source, frame, "vLLM log (times to the second)", num_skipped)


def _since(moment_s: float | None, start_s: float) -> float | None:
    return None if moment_s is None else moment_s - start_s


def _no_lengths(requests: dict[str, _Request], samples: Sequence[StatsLine], source: str) -> NoRequestsError:
    num_dropped = Counter(
        "output_tokens missing" if r.prompt_tokens else "prompt_tokens missing" for r in requests.values()
    )
    message = f"{source}: vLLM's log, but no request in it tells both of its lengths"
    load = _measure(requests, samples)
    if load:
        message += (
            f"; its {load.num_samples} statistics lines tell {load.concurrency_mean:.1f} requests in flight on average "
            f"({load.concurrency_p95:.0f} p95), {load.prompt_tokens_per_s:,.0f} prompt and "
            f"{load.output_tokens_per_s:,.0f} generated tokens/s"
        )
    return NoRequestsError(message, _HINT, source=source, num_dropped=dict(num_dropped), load=load)


def _measure(requests: dict[str, _Request], samples: Sequence[StatsLine]) -> ServerLoad | None:
    if not samples:
        return None
    received = sorted(request.received_s for request in requests.values() if request.received_s is not None)
    span_s = received[-1] - received[0] if received else 0.0

    waiting = np.array([(sample.num_waiting or 0.0) + (sample.num_swapped or 0.0) for sample in samples])
    in_flight = waiting + np.array([sample.num_running or 0.0 for sample in samples])
    return ServerLoad(
        num_samples=len(samples),
        rate_rps=(len(received) - 1) / span_s if span_s else None,
        concurrency_mean=float(in_flight.mean()),
        concurrency_p95=float(np.percentile(in_flight, 95)),
        waiting_max=int(waiting.max()),
        prompt_tokens_per_s=float(np.mean([sample.prompt_tokens_per_s or 0.0 for sample in samples])),
        output_tokens_per_s=float(np.mean([sample.generation_tokens_per_s or 0.0 for sample in samples])),
    )
