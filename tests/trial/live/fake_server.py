"""A `vllm serve` without a model: the dials' own scheduler on a small vLLM of ours, behind real HTTP.

fake_server.py serve MODEL --port PORT --max-num-seqs S --max-num-batched-tokens T; HOW in the environment says what is
wrong with the first server of a study: `stalls:N` stops before its N-th step, `dies:N` ends there, `keeps` does not
abort what clients drop, `refuses:N` answers 400 in run N. STEP_S is the time of a step, VLLM the version.
"""

import asyncio
import importlib.util
import json
import os
import sys
from pathlib import Path

from aiohttp import web

spec = importlib.util.spec_from_file_location("fake_vllm", Path(__file__).parents[1] / "fake_vllm.py")
fake_vllm = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fake_vllm)


def argument(name):
    return sys.argv[sys.argv.index(name) + 1]


class Engine:
    """Steps while there are requests; each answer waits for its own."""

    def __init__(self):
        sys.modules.update(fake_vllm.modules(os.environ.get("VLLM", "0.32.0")))
        from maitre_dials import DialScheduler  # noqa: PLC0415 - it looks for vLLM at once

        limits = {
            "max_num_seqs": argument("--max-num-seqs"),
            "max_num_batched_tokens": argument("--max-num-batched-tokens"),
        }
        config = fake_vllm.make_config(**{name: int(value) for name, value in limits.items()})
        self.scheduler = DialScheduler(vllm_config=config)
        how = os.environ.get("HOW", "") if os.environ["MAITRE_DIALS_DIR"].endswith("start-1") else ""
        self.how = dict(word.partition(":")[::2] for word in how.split())
        self.step_s = float(os.environ.get("STEP_S", "0.001"))
        self.ended = {}
        self.has_work = asyncio.Event()
        self.num_steps = 0

    async def loop(self):
        while True:
            await self.has_work.wait()
            output = self.scheduler.schedule()
            self.num_steps += 1
            if self.num_steps == int(self.how.get("stalls", 0)):
                await asyncio.sleep(3600)
            if self.num_steps == int(self.how.get("dies", 0)):
                sys.stdout.write("EngineDeadError: EngineCore encountered an issue.\n")
                sys.stdout.flush()
                os._exit(1)
            await asyncio.sleep(self.step_s)
            self.scheduler.update_from_output(output)
            for request_id in [one for one in self.ended if one not in self.scheduler.requests]:
                self.ended.pop(request_id).set()
            if not self.scheduler.requests:
                self.has_work.clear()

    async def complete(self, request):
        body = json.loads(await request.text())
        if request.headers["X-Request-Id"].split("-")[1] == self.how.get("refuses"):
            return web.json_response({"error": {"message": "no"}}, status=400)
        made = fake_vllm.Request(
            f"cmpl-{request.headers['X-Request-Id']}-0-0badcafe", len(body["prompt"]), body["max_tokens"]
        )
        ended = self.ended[made.request_id] = asyncio.Event()
        self.scheduler.add_request(made)
        self.has_work.set()
        try:
            await ended.wait()
        except asyncio.CancelledError:
            if "keeps" not in self.how and made.request_id in self.scheduler.requests:
                self.scheduler.abort(made)
            raise
        return await answer(request, made.max_tokens, is_streaming=body.get("stream"))


async def answer(request, num_tokens, *, is_streaming):
    usage = {"completion_tokens": num_tokens}
    if not is_streaming:
        return web.json_response({"choices": [{"text": "…"}], "usage": usage})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    token = {"choices": [{"index": 0, "text": "…"}]}
    for message in [*[token] * num_tokens, {"choices": [], "usage": usage}]:
        await response.write(b"data: " + json.dumps(message, separators=(",", ":")).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def main():
    engine = Engine()
    application = web.Application(client_max_size=2**24)
    models = {"object": "list", "data": [{"id": argument("serve"), "owned_by": "vllm", "max_model_len": 256}]}

    async def tell(request):
        answers = {"/v1/models": models, "/version": {"version": "0.32.0"}, "/health": {}}
        return web.json_response(answers[request.path])

    application.add_routes([web.get(path, tell) for path in ("/v1/models", "/version", "/health")])
    application.add_routes([web.post("/v1/completions", engine.complete)])
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(argument("--port")), backlog=1024).start()
    await engine.loop()


if __name__ == "__main__":
    sys.stdout.write(" ".join(["arguments", *sys.argv[1:]]) + "\n")
    sys.stdout.flush()
    asyncio.run(main())
