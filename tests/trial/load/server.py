"""A small real server that speaks /v1/models and /v1/completions with known token gaps, and fails on demand."""

import asyncio
import contextlib
import json
import threading
import time
from dataclasses import dataclass, field

from aiohttp import web

MESSAGE = "This model's maximum context length is 8 tokens"
FAULTS = {
    "rejected": {"status": 400, "text": json.dumps({"error": {"message": MESSAGE, "code": 400}})},
    "old-rejected": {"status": 400, "text": json.dumps({"object": "error", "message": MESSAGE, "code": 400})},
    "server-error": {"status": 500, "text": "the engine is dead"},
    "redirect": {"status": 307, "headers": {"Location": "/elsewhere"}},
    "garbage": {"text": "data: hello\n\n"},
    "nested": {"text": "[" * 100_000},
}
"""Answers in one piece; hang, reset, short and error-event take more than that."""


@dataclass
class Server:
    """What it does, and what it has seen."""

    gap_s: float = 0.0
    first_token_s: float = 0.0
    tokens_per_event: int = 1
    faults: dict[int, str] = field(default_factory=dict)
    """What goes wrong, by index of the request: see `_answer` and `_stream`."""
    bodies: dict[int, dict] = field(default_factory=dict)
    headers: dict[int, dict] = field(default_factory=dict)
    received_s: dict[int, float] = field(default_factory=dict)
    """On the monotonic clock."""
    num_running: int = 0
    most_running: int = 0
    num_dropped: int = 0
    """Requests whose client went away."""
    url: str = ""

    async def complete(self, request):
        index = int(request.headers["X-Request-Id"].rsplit("-", 1)[1])
        self.received_s[index] = time.monotonic()
        self.headers[index] = request.headers.copy()
        body = self.bodies[index] = json.loads(await request.text())
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            return await self._answer(request, body, self.faults.get(index, ""))
        except asyncio.CancelledError:
            self.num_dropped += 1
            raise
        finally:
            self.num_running -= 1

    async def _answer(self, request, body, fault):
        num_tokens = body["max_tokens"] - (fault == "short")
        if fault in FAULTS:
            return web.Response(**FAULTS[fault])
        await asyncio.sleep(60 if fault == "hang" else self.first_token_s)
        if body.get("stream"):
            return await self._stream(request, num_tokens, fault)
        await asyncio.sleep(self.gap_s * (num_tokens - 1))
        if fault == "reset":
            request.transport.abort()
        return web.json_response({"choices": [{"text": "…"}], "usage": {"completion_tokens": num_tokens}})

    async def _stream(self, request, num_tokens, fault):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        due = time.monotonic()
        for token in range(0, num_tokens, self.tokens_per_event):
            if token:
                due += self.gap_s
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            await response.write(
                event({"choices": [{"index": 0, "text": '"choices":[{\n\ndata: [DONE]'}], "usage": None})
            )
            if token == 2 and fault == "reset":
                request.transport.abort()
                return response
            if token == 2 and fault == "error-event":
                await response.write(event({"error": {"message": MESSAGE}}) + b"data: [DONE]\n\n")
                return response
        usage = {"completion_tokens": num_tokens}
        await response.write(event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response


def event(message):
    return b"data: " + json.dumps(message, separators=(",", ":")).encode() + b"\n\n"


async def _list_models(request):
    return web.json_response({"object": "list", "data": [{"id": "tiny"}]})


@contextlib.contextmanager
def serving(**behaviour):
    """A server on a free port, in a thread of its own, until the block ends."""
    server = Server(**behaviour)
    ready, loop = threading.Event(), asyncio.new_event_loop()

    async def serve():
        application = web.Application(client_max_size=2**24)
        application.add_routes([web.get("/v1/models", _list_models), web.post("/v1/completions", server.complete)])
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await ended.wait()
        await runner.cleanup()

    ended = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
