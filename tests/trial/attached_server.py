"""A server that somebody else runs: the small one of the load generator, with its health, version and metrics."""

import asyncio
import contextlib
import importlib.util
import json
import threading
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

spec = importlib.util.spec_from_file_location("load_server", Path(__file__).parent / "load" / "server.py")
load_server = importlib.util.module_from_spec(spec)
spec.loader.exec_module(load_server)


@dataclass
class AttachedServer(load_server.Server):
    """What it does, and what it has seen."""

    has_metrics: bool = True
    num_others: int = 0
    """Finished requests of somebody else, told from the second look on."""
    dev_config: dict | None = None
    """What /server_info answers; None: it has no such path."""
    num_finished: int = 0
    num_tokens: int = 0
    num_looks: int = 0
    is_ill: bool = False

    async def complete(self, request):
        response = await super().complete(request)
        body = json.loads(await request.text())
        self.num_finished, self.num_tokens = self.num_finished + 1, self.num_tokens + body["max_tokens"]
        return response

    async def models(self, _):
        return web.json_response({"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 2048}]})

    async def health(self, _):
        return web.Response(status=500 if self.is_ill else 200)

    async def metrics(self, _):
        self.num_looks += 1
        others = self.num_others if self.num_looks > 1 else 0
        families = {
            "num_requests_running": self.num_running,
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": 0.25,
            "num_preemptions_total": 0,
            "request_success_total": self.num_finished + others,
            "generation_tokens_total": self.num_tokens + 5 * others,
            'cache_config_info{num_gpu_blocks="65",block_size="16"}': 1,
        }
        lines = [f"vllm:{name} {value}" for name, value in families.items()]
        return web.Response(text="\n".join(lines) if self.has_metrics else "")

    async def server_info(self, _):
        if self.dev_config is None:
            return web.Response(status=404)
        return web.json_response({"vllm_config": {"scheduler_config": self.dev_config}})


@contextlib.contextmanager
def serving(**behaviour):
    """A server on a free port, in a thread of its own, until the block ends."""
    server = AttachedServer(**behaviour)
    ready, loop = threading.Event(), asyncio.new_event_loop()

    async def version(_):
        return web.json_response({"version": "0.32.0"})

    async def serve():
        application = web.Application(client_max_size=2**24)
        paths = {
            "/v1/models": server.models, "/health": server.health, "/version": version, "/metrics": server.metrics,
            "/server_info": server.server_info,
        }  # fmt: skip
        application.add_routes([web.get(path, handler) for path, handler in paths.items()])
        application.add_routes([web.post("/v1/completions", server.complete)])
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
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
