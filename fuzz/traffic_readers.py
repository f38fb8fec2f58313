"""Requests: what `maitre profile` reads, whatever it comes from."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
from file_readers import bench_results
from places import FOLDER, as_file, verb

from maitre.errors import MaitreError
from maitre.prometheus import client
from maitre.prometheus.connection import HttpAnswer
from maitre.workload import Columns, NoRequestsError, Selection, describe, export_trace, load_workload
from maitre.workload.langfuse import connection, exports, journal, selection, server
from maitre.workload.langfuse.requests import build_workload
from maitre.workload.prometheus.profile import describe_served
from maitre.workload.prometheus.source import read_prometheus

_NOW = datetime(2026, 11, 8, tzinfo=UTC)
_DTYPES: dict[str, Any] = {
    "i8": pl.Int8, "i64": pl.Int64, "u64": pl.UInt64, "i128": pl.Int128, "f32": pl.Float32, "f64": pl.Float64,
    "bool": pl.Boolean, "text": pl.String, "binary": pl.Binary, "date": pl.Date, "time": pl.Time,
    "us": pl.Datetime("us"), "ns": pl.Datetime("ns", "UTC"), "duration": pl.Duration("ms"), "category": pl.Categorical,
    "decimal": pl.Decimal(30, 5),
}  # fmt: skip


def workload(data: bytes) -> None:
    """`maitre profile FILE --json` and `-o`, for all that a file can be."""
    _profile(data, "input", Columns())


def columns(data: bytes) -> None:
    """The same, with columns named: the first line names them, the rest is the table."""
    head, _, table = data.partition(b"\n")
    names = [name or None for name in head.decode(errors="replace").split("|")][:4]
    _profile(table, "input", Columns(**dict(zip(("prompt", "output", "time", "latency"), names, strict=False))))


def _profile(data: bytes, name: str, asked: Columns) -> None:
    try:
        traffic = load_workload(as_file(data, name), columns=asked, num_requests=50, default_num_requests=50)
    except NoRequestsError as error:
        json.dumps(error.num_dropped).encode()
        if error.load:
            error.load.model_dump_json().encode()
        raise
    traffic.model_dump_json(exclude_none=True).encode()
    describe(traffic, 8.0).model_dump_json().encode()
    with suppress(MaitreError):
        export_trace(traffic, "mooncake", "FILE")


def profile_printed(data: bytes) -> None:
    """`maitre profile FILE` for people."""
    verb("profile", as_file(data), "--num-requests", "50")


def parquet(data: bytes) -> None:
    """A Parquet file with the columns of a JSON object; `NAME:i64` gives a column its type."""
    try:
        content = json.loads(data)
        frame = pl.DataFrame(
            {name: pl.Series(values, strict=False) for name, values in content.items() if isinstance(values, list)}
        )
        for name in frame.columns:
            word = name.rpartition(":")[2]
            if word in _DTYPES:
                frame = frame.with_columns(pl.col(name).cast(_DTYPES[word], strict=False).alias(name))
        file = io.BytesIO()
        frame.rename({name: name.rpartition(":")[0] or name for name in frame.columns}).write_parquet(file)
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError, pl.exceptions.PolarsError):
        return  # no such table exists
    except BaseException as error:  # polars' panics while it writes are not what is tried here
        if isinstance(error, KeyboardInterrupt) or "Panic" not in type(error).__name__:
            raise
        return
    for reader in (workload, bench_results):
        with suppress(MaitreError):
            reader(file.getvalue())


def langfuse_export(data: bytes) -> None:
    """`maitre profile langfuse:FILE`, in a window and filtered."""
    chosen = Selection(since="2020-01-01", where=("environment=default",))
    with suppress(MaitreError):
        exports.read_export(data, "input", chosen, "input", _NOW).model_dump_json().encode()
    exports.looks_like_export(data)
    exports.read_export(data, "input", Selection(), "input", _NOW).model_dump_json().encode()


class _Answers(connection.Connection):
    """A Langfuse server that gives the answers of a list, one after another, and then is gone."""

    answers: Iterator[Any] = iter(())

    async def _ask(self, _path: str, _params: Any) -> tuple[int, dict[str, str], bytes]:
        answer = next(self.answers, {"status": 503})
        answer = answer if isinstance(answer, dict) else {"body": answer}
        status = answer.get("status", 200)
        headers = {"Content-Type": "application/json", "Retry-After": str(answer.get("wait", "1"))}
        body = answer.get("body", answer)
        content = body.encode("utf-8", "replace") if isinstance(body, str) else json.dumps(body).encode()
        return (status if isinstance(status, int) and 100 <= status < 600 else 200), headers, content


async def _no_pause(_: float) -> None:
    pass


_AROUND = server.Surroundings(
    {"XDG_CACHE_HOME": str(FOLDER), "LANGFUSE_PUBLIC_KEY": "public", "LANGFUSE_SECRET_KEY": "secret"},
    now=lambda: _NOW,
    pause=_no_pause,
)


def langfuse_pages(data: bytes) -> None:
    """The answers of a Langfuse server: a JSON list of bodies, or of objects with `status`, `wait` and `body`."""
    try:
        answers = json.loads(data)
    except (ValueError, RecursionError):
        answers = [data.decode(errors="replace")]
    _Answers.answers = iter(answers if isinstance(answers, list) else [answers])
    server.Connection = _Answers  # type: ignore[misc]
    try:
        traffic = server.read_server("http://langfuse", Selection(where=("model=m",)), _AROUND, lambda _: None)
    finally:
        server.Connection = connection.Connection  # type: ignore[misc]
        shutil.rmtree(FOLDER / "maitre", ignore_errors=True)  # the journal: no input goes on where another stopped
    traffic.model_dump_json().encode()


def langfuse_journal(data: bytes) -> None:
    """What an interrupted read left; it counts as far as it can be read."""
    resumed = journal.Journal(Path(as_file(data)), selection.Window(0, 1000), 1_700_000_000_000)
    selection.format_ms(resumed.done_until_ms)
    str(resumed.rest)
    resumed.add(resumed.rest, [])
    build_workload(resumed.observations, "input", "http://langfuse").model_dump_json().encode()


def prometheus(data: bytes) -> None:
    """The answers of a Prometheus: `names`, `buckets` or `result`, by the question, with `status`; else the text."""
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        told = data
    told = told if isinstance(told, dict) else {"names": told, "result": told}

    def ask(_address: Any, _access: Any, path: str, params: list[tuple[str, str]]) -> HttpAnswer:
        body = told.get("names" if path.endswith("/values") else "result")
        if "by (le)" in dict(params).get("query", ""):
            body = told.get("buckets", body)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return HttpAnswer(told["status"] if type(told.get("status")) is int else 200, content, "", "")

    real, client.ask = client.ask, ask
    try:
        with suppress(MaitreError):
            verb("verify", "--prometheus", "http://prometheus", "--json")
        served = read_prometheus("http://prometheus", Selection(), now=lambda: _NOW)
        describe_served(served).model_dump_json().encode()
    finally:
        client.ask = real
