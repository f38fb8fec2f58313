"""A real vLLM with its dials set wrongly on purpose, under load: what its /metrics show, for `maitre verify`.

    python benchmarks/served_conditions.py --seconds 55 --out DIR -- vllm serve MODEL …

One server, started with maitre's scheduler at the largest cell, goes through the conditions below; its /metrics is
saved each second, a file a condition, and `maitre verify --metrics FILE` is what the files are for. `--shorter`
divides lengths and `--faster` multiplies rates, for another machine than an H200 with a 14B model. Needs aiohttp, and
maitre on the path.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import os
import subprocess
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import numpy as np

from maitre.records import Cell
from maitre.trial.dials import DialDirectory, fresh_dials

LARGEST = Cell(max_num_seqs=256, max_num_batched_tokens=8192)
START_S = 900


@dataclass(frozen=True)
class Condition:
    """A setting and a load: either `rate_rps` of independent arrivals, or `clients` that wait for their answers."""

    name: str
    cell: Cell
    prompt_tokens: int
    output_tokens: int
    rate_rps: float = 0.0
    clients: int = 0
    num_gpu_blocks: int | None = None
    """Of the pool; None: all of it."""

    def scaled(self, shorter: float, faster: float) -> Condition:
        """For another machine: requests so many times shorter, arrivals so many times faster."""
        return replace(
            self,
            prompt_tokens=max(4, round(self.prompt_tokens / shorter)),
            output_tokens=max(4, round(self.output_tokens / shorter)),
            rate_rps=self.rate_rps * faster,
        )


def cell(seqs: int, tokens: int) -> Cell:
    """Two dials."""
    return Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens)


CONDITIONS = (
    Condition("kv-tight", LARGEST, 600, 200, rate_rps=10, num_gpu_blocks=2000),
    Condition("seq-capped", cell(8, 8192), 600, 200, rate_rps=10),
    Condition("raise-token-budget", cell(256, 256), 4000, 30, clients=96),
    Condition("kv-bound", LARGEST, 300, 500, clients=96, num_gpu_blocks=1500),
    Condition("two-modes", LARGEST, 2000, 100, rate_rps=6),
    Condition("defaults-suffice", LARGEST, 600, 200, rate_rps=4),
    Condition("client-limited", LARGEST, 600, 200, clients=8),
    Condition("idle", LARGEST, 600, 200),
)


async def main() -> None:
    """Start the server, go through the conditions, stop it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=55)
    parser.add_argument("--shorter", type=float, default=1)
    parser.add_argument("--faster", type=float, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--port", type=int, default=8017)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    _, dials = fresh_dials(options.out / "dials")
    words = [word for word in options.command if word != "--"]
    server = start([*words, "--port", str(options.port), *dials.arguments(LARGEST)], dials, options.out / "server.log")
    try:
        await wait_ready(f"http://127.0.0.1:{options.port}", server)
        for run, condition in enumerate(CONDITIONS, start=1):
            if not options.only or condition.name in options.only:
                scaled = condition.scaled(options.shorter, options.faster)
                await record(scaled, run, dials, options.port, options.seconds, options.out)
    finally:
        os.killpg(server.pid, 15)
        server.wait(60)


def start(command: list[str], dials: DialDirectory, log: Path) -> subprocess.Popen[bytes]:
    """A server in a process group of its own."""
    with log.open("w") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=os.environ | dials.environment(), start_new_session=True
        )


async def wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    """Until the server answers.

    Raises:
        SystemExit: it ended, or takes too long.
    """
    deadline = time.monotonic() + START_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline and server.poll() is None:
            try:
                async with session.get(f"{url}/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)
    raise SystemExit("the server did not start; see server.log")


async def record(
    condition: Condition,
    run: int,
    dials: DialDirectory,
    port: int,
    seconds: float,
    out: Path,
    every_s: float = 1.0,
) -> None:
    """One condition: turn the dials, load, save scrapes, and wait until the server is empty."""
    url = f"http://127.0.0.1:{port}"
    dials.turn(run, condition.cell, num_gpu_blocks=condition.num_gpu_blocks)
    unlimited = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600), connector=unlimited) as session:
        async with session.get(f"{url}/v1/models") as answer:
            model = (await answer.json())["data"][0]["id"]
        load = asyncio.create_task(send(condition, session, f"{url}/v1/completions", model, run, dials))
        with gzip.open(out / f"{condition.name}.prom.gz", "wt") as file:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                async with session.get(f"{url}/metrics") as answer:
                    text = await answer.text()
                file.write(f"# scraped {datetime.now(UTC).isoformat(timespec='milliseconds')}\n")
                file.writelines(f"{line}\n" for line in text.splitlines() if "vllm:" in line and "_created" not in line)
                await asyncio.sleep(every_s)
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
    async with aiohttp.ClientSession() as session:
        await drained(session, url)
    print(condition.name, "recorded", flush=True)


async def send(
    condition: Condition, session: aiohttp.ClientSession, url: str, model: str, run: int, dials: DialDirectory
) -> None:
    """Requests until cancelled."""
    generator = np.random.default_rng(run)
    tasks: set[asyncio.Task[None]] = set()
    index = 0

    async def one() -> None:
        nonlocal index
        spread = generator.lognormal(0, 0.4, 2)
        prompt = generator.integers(10, 900, max(2, round(condition.prompt_tokens * spread[0]))).tolist()
        num_tokens = max(2, round(condition.output_tokens * spread[1]))
        body = {"model": model, "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0}
        index += 1
        headers = {"X-Request-Id": dials.request_id(run, index - 1)}
        async with session.post(url, json=body, headers=headers) as answer:
            await answer.read()

    async def client() -> None:
        while True:
            await one()

    try:
        if condition.clients:
            await asyncio.gather(*(client() for _ in range(condition.clients)))
        while condition.rate_rps:
            task = asyncio.create_task(one())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            await asyncio.sleep(float(generator.exponential(1 / condition.rate_rps)))
        await asyncio.sleep(3600)
    finally:
        for task in tasks:
            task.cancel()


async def drained(session: aiohttp.ClientSession, url: str) -> None:
    """Until nothing runs or waits any more; cancelled requests are aborted by the server."""
    for _ in range(600):
        async with session.get(f"{url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        busy = [line for line in lines if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting{"))]
        if all(float(line.rsplit(" ", 1)[1]) == 0 for line in busy):
            return
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main())
