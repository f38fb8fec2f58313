"""What a server prints, exposes and answers: logs, scrapes, streams of events, command lines."""

from __future__ import annotations

from contextlib import suppress

from places import GIVEN, as_file, verb

from maitre.errors import MaitreError
from maitre.trial import probe, server_metrics
from maitre.trial.load import events
from maitre.verify.sources import from_log
from maitre.verify.sources import saved_scrapes as saved_scrapes_of
from maitre.vllm import metrics_text, startup_log, startup_log_flags
from maitre.vllm.failures import classify_failure


def startup(data: bytes) -> None:
    """`maitre budget --log FILE --json`, cut into pieces at places that depend on the content."""
    step = 1 + len(data) % 4096
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    for start in startup_log.read_startups(pieces, "input"):
        start.model_dump_json().encode()


def budget_log(data: bytes) -> None:
    """`maitre budget --log FILE`, for people and with a model to compare with."""
    path = as_file(data)
    with suppress(MaitreError):
        verb("budget", "--log", path)
    verb("budget", "--log", path, "--json", *GIVEN, "--model", "Qwen/Qwen2.5-7B-Instruct", "--gpu", "H200")


def failures(data: bytes) -> None:
    """Why a server failed, by its log."""
    for exit_code in (None, 1, -9):
        classify_failure(data.decode(errors="replace"), exit_code, timed_out=False).model_dump_json().encode()


def serve_flags(data: bytes) -> None:
    """A line of a log that may be a command or a dump of arguments."""
    text = data.decode(errors="replace")
    startup_log_flags.flags_in(text)
    startup_log_flags.command_flags(text)


def scrape(data: bytes) -> None:
    """A scrape of `/metrics`, by both of its readers."""
    text = data.decode(errors="replace")
    metrics_text.read_cache_metrics(metrics_text.parse_metrics_text(text)).model_dump_json().encode()
    server_metrics.parse_metrics(text, 1.0)
    _ = server_metrics.parse_metrics(text, 1.0).num_gpu_blocks


def budget_metrics(data: bytes) -> None:
    """`maitre budget --metrics FILE`."""
    path = as_file(data)
    with suppress(MaitreError):
        verb("budget", "--metrics", path)
    verb("budget", "--metrics", path, "--json", *GIVEN)


def serving_log(data: bytes) -> None:
    """What a log says of the time after the start, cut into pieces at places that depend on the content."""
    step = 1 + len(data) % 4096
    from_log.read_log([data[start : start + step] for start in range(0, len(data), step)], "input")


def verify_log(data: bytes) -> None:
    """`maitre verify --log FILE`, for people and as JSON."""
    path = as_file(data)
    with suppress(MaitreError):
        verb("verify", "--log", path, "--max-num-seqs", "256")
    verb("verify", "--log", path, "--json")


def saved_scrapes(data: bytes) -> None:
    """One or several scrapes in a file."""
    saved_scrapes_of.read_dumps([("scrape-2026-05-01T120000Z.prom", [data]), ("input", [data[: len(data) // 2]])])


def verify_metrics(data: bytes) -> None:
    """`maitre verify --metrics FILE`, for people and as JSON."""
    path = as_file(data)
    with suppress(MaitreError):
        verb("verify", "--metrics", path, "--max-num-seqs", "256")
    verb("verify", "--metrics", path, "--json")


def stream(data: bytes) -> None:
    """A server's answers: a stream of events in two pieces, an error, and what the probe asks."""
    half = len(data) // 2
    counter = events.EventCounter()
    with suppress(MaitreError):
        counter.feed(data[:half], 1.0)
        counter.feed(data[half:] + b"\n\n", 2.0)
    _ = counter.num_tokens
    events.error_text(data).encode("utf-8", "replace")
    probe._model_entries(data)  # noqa: SLF001 - the pure part of a call over the network
