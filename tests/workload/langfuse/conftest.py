"""A Langfuse server on this machine, and observations to put into it."""

import asyncio
import importlib.util
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from maitre.workload.langfuse import Selection
from maitre.workload.langfuse.server import Surroundings, read_server

spec = importlib.util.spec_from_file_location("langfuse_double", Path(__file__).with_name("double.py"))
double = importlib.util.module_from_spec(spec)
spec.loader.exec_module(double)

NOW = datetime(2026, 11, 8, 0, 15, tzinfo=UTC)
"""A read without a window asks for 1 to 8 November."""
START = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture(scope="session")
def contract(shared_path):
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return double.Contract(yaml.load((shared_path / "data/langfuse/openapi.yml").read_text("utf-8"), loader))


@pytest.fixture
def langfuse(contract):
    """A server whose questions and answers keep to the document, which is asserted at the end."""
    server, loop = double.Double(contract), asyncio.new_event_loop()

    async def start():
        runner = web.AppRunner(server.app())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return runner

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    yield server
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert server.violations == []


@pytest.fixture(scope="session")
def make_call():
    """An observation `at_s` seconds after 1 November, which takes two seconds."""

    def make(at_s, usage, **changes):
        start = START + timedelta(seconds=at_s)
        row = {
            "id": f"obs-{at_s:010.3f}", "traceId": f"trace-{at_s}", "projectId": "p", "parentObservationId": None,
            "type": "GENERATION", "name": "answer", "level": "DEFAULT", "statusMessage": None, "version": None,
            "environment": "production", "startTime": stamp(start), "endTime": stamp(start + timedelta(seconds=2)),
            "completionStartTime": None, "model": "qwen", "modelParameters": {}, "usageDetails": usage, "tags": [],
        }  # fmt: skip
        return row | changes

    return make


def stamp(moment):
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


class Reading:
    """Reads a server, and remembers how long it would have waited and what it said."""

    def __init__(self, url, cache):
        self.url = url
        self.environ = {
            "LANGFUSE_PUBLIC_KEY": double.PUBLIC_KEY,
            "LANGFUSE_SECRET_KEY": double.SECRET_KEY,
            "XDG_CACHE_HOME": str(cache),
        }
        self.waits_s, self.notes, self.progress = [], [], []

    def __call__(self, *where, since=None, until=None):
        selection = Selection(since=since, until=until, where=where)
        around = Surroundings(self.environ, now=lambda: NOW, pause=self._pause)
        return read_server(self.url, selection, around, self._listen)

    async def _pause(self, seconds):
        self.waits_s.append(seconds)

    def _listen(self, progress):
        self.progress.append(progress)
        if progress.note:
            self.notes.append(progress.note)


@pytest.fixture
def read(langfuse, tmp_path):
    return Reading(langfuse.url, tmp_path / "cache")
