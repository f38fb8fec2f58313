"""How many streamed tokens/s one process follows, and how true the gaps are that it sees.

    python benchmarks/load_generator.py [--seconds 5] [--rates 5000 10000 20000 30000] [--gap-ms 20]

A server in another process makes steps as vLLM does: every 20 ms each running stream gets one token, all in one burst.
It notes when it wrote each, on the clock that the client reads too, so that the error of a gap is the client's own:
(gap seen − gap written). Two cores for themselves are needed; on a busy machine the figures are those of the machine,
and the client says so (`spoiled`).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import multiprocessing
import os
import re
import time
from array import array
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from maitre.trial.load import LoadPlan, PlannedRequest, drive_in_processes
from maitre.trial.load.health import HealthMeter

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = (
    b'data: {"id":"cmpl-maitre-0-123","object":"text_completion","created":1700000000,"model":"m","choices":['
    b'{"index":0,"text":" hello","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}\n\n'
)
END = b"data: [DONE]\n\n"

Times = dict[int, NDArray[np.float64]]
"""When each token was written or seen, by request, on the monotonic clock."""


class Stream(asyncio.Protocol):
    """One connection of the server: no more of HTTP than the clients here speak."""

    running: set[Stream] = set()  # noqa: RUF012 - one server a process
    written_s: dict[int, array[float]] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self._received = b""
        self._num_left = 0
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Nobody listens."""
        self.running.discard(self)

    def data_received(self, data: bytes) -> None:
        """Join the running streams once the request is complete."""
        self._received += data
        head, _, body = self._received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if head.startswith(b"GET"):
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        elif length and len(body) >= int(length[1]):
            index = re.search(rb"(?i)x-request-id: maitre-\d+-(\d+)", head)
            tokens = re.search(rb'"max_tokens":(\d+)', body)
            assert index
            assert tokens
            self._times = self.written_s[int(index[1])] = array("d")
            self._num_left = int(tokens[1])
            self._transport.write(HEAD)
            self.running.add(self)
        else:
            return
        self._received = b""

    def write_token(self) -> None:
        """One token, and the end behind the last."""
        self._num_left -= 1
        is_last = self._num_left == 0
        self._times.append(time.monotonic())
        self._transport.write(_chunk(TOKEN) + (_chunk(END) + _chunk(b"") if is_last else b""))
        if is_last:
            self.running.discard(self)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def serve(pipe: Connection, gap_s: float) -> None:
    """Make steps for ever; tell the port first, and the times at each request for them."""

    def report() -> None:
        try:
            pipe.recv()
        except EOFError:  # nobody is left to ask
            os._exit(0)
        pipe.send({index: np.array(times) for index, times in Stream.written_s.items()})
        Stream.written_s.clear()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Stream, "127.0.0.1", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        loop.add_reader(pipe.fileno(), report)
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + gap_s, time.monotonic())
            for stream in tuple(Stream.running):
                stream.write_token()
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    asyncio.run(run())


def with_maitre(plan: LoadPlan, url: str, num_processes: int) -> tuple[Times, str]:
    """What maitre's client sees, and how it fared."""
    cpu_s = time.process_time()
    result = drive_in_processes(plan, url, "m", num_processes=num_processes, timeout_s=120)
    cpu_s = time.process_time() - cpu_s
    assert not result.num_errors, result.num_errors
    seen = {}
    for outcome in result.outcomes:
        assert outcome.gaps_s is not None
        assert outcome.first_token_s is not None
        seen[outcome.index] = result.start_s + outcome.first_token_s + np.cumsum([0.0, *outcome.gaps_s])
    health = result.health
    condition = f"CPU {health.cpu_share:4.0%} of a core, lag p99 {health.lag_p99_s * 1e3:5.1f} ms"
    return seen, condition + (", spoiled" if health.is_spoiled else "")


def with_httpx(plan: LoadPlan, url: str, num_processes: int) -> tuple[Times, str]:  # noqa: ARG001
    """The same with httpx, read line by line as its documentation shows."""
    import httpx  # noqa: PLC0415 - only if installed

    seen: Times = {}

    async def follow(client: httpx.AsyncClient, request: PlannedRequest) -> None:
        times = array("d")
        headers = {"X-Request-Id": plan.request_id(request)}
        body = plan.body(request, "m")
        async with client.stream("POST", f"{url}/v1/completions", content=body, headers=headers) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    times.append(time.monotonic())
        seen[request.index] = np.array(times)

    async def run() -> str:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=None) as client:  # noqa: S113
            meter = HealthMeter()
            ticking = asyncio.create_task(meter.tick())
            await asyncio.gather(*(follow(client, request) for request in plan.requests))
            ticking.cancel()
        health = meter.health()
        return f"CPU {health.cpu_share:4.0%} of a core, lag p99 {health.lag_p99_s * 1e3:5.1f} ms"

    condition = asyncio.run(run())
    return seen, condition


CLIENTS = {"maitre": with_maitre, "httpx": with_httpx}


def compare(client: str, rate: int, seconds: float, gap_s: float, num_processes: int = 1) -> None:
    """One line: a client at a rate."""
    num_tokens = max(2, round(seconds / gap_s))
    requests = tuple(PlannedRequest(index, [100], num_tokens) for index in range(round(rate * gap_s)))
    plan = LoadPlan(run=0, requests=requests, is_streaming=True)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs, gap_s), daemon=True)
    server.start()
    try:
        seen, condition = CLIENTS[client](plan, f"http://127.0.0.1:{ours.recv()}", num_processes)
        ours.send(None)
        written: Times = ours.recv()
    finally:
        server.kill()
        server.join()
    _print_line(client, rate, num_processes, seen, written, condition)


def _print_line(client: str, rate: int, num_processes: int, seen: Times, written: Times, condition: str) -> None:
    assert all(len(seen[index]) == len(written[index]) for index in written), "tokens were lost"
    errors_ms = 1e3 * np.abs(np.concatenate([np.diff(seen[index]) - np.diff(written[index]) for index in written]))
    gaps_ms = 1e3 * np.concatenate([np.diff(times) for times in seen.values()])
    true_ms = 1e3 * np.concatenate([np.diff(times) for times in written.values()])
    times_s = np.concatenate(list(seen.values()))
    print(
        f"{client:6} x{num_processes} {rate:6,}/s asked {len(times_s) / np.ptp(times_s):6,.0f}/s followed   "
        f"gaps written p50 {np.median(true_ms):5.1f} p99 {np.percentile(true_ms, 99):5.1f} ms, "
        f"seen p50 {np.median(gaps_ms):5.1f} p99 {np.percentile(gaps_ms, 99):5.1f} ms   "
        f"error p50 {np.median(errors_ms):5.2f} p99 {np.percentile(errors_ms, 99):6.2f} ms   {condition}"
    )


def main() -> None:
    """All rates, maitre beside httpx, then the highest with two processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--gap-ms", type=float, default=20.0)
    parser.add_argument("--rates", type=int, nargs="+", default=[5_000, 10_000, 20_000, 30_000])
    options = parser.parse_args()
    has_httpx = importlib.util.find_spec("httpx") is not None
    for rate in options.rates:
        compare("maitre", rate, options.seconds, options.gap_ms / 1e3)
        if has_httpx:
            compare("httpx", rate, options.seconds, options.gap_ms / 1e3)
    compare("maitre", max(options.rates), options.seconds, options.gap_ms / 1e3, num_processes=2)
    if not has_httpx:
        print("httpx is not installed: no peer to compare with")


if __name__ == "__main__":
    main()
