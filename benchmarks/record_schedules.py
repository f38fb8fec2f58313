"""Record what vLLM's own scheduler decides, with every switch that maitre replays. No model runs and no GPU is needed.

Runs where vLLM is installed, on any machine (0.32.0 tried, built for the CPU). vLLM's `Scheduler` or `AsyncScheduler`
gets seeded random requests as token ids; `schedule()` and `update_from_output()` are called in the order of
`EngineCore.step` or `EngineCore.step_with_batch_queue` (`v1/engine/core.py`), with made-up outputs.

    python record_schedules.py ../tests/data/vllm_schedules.json.gz

Time does not exist here: a request arrives before a given *tick*, and a tick is one round of the engine's loop.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import itertools
import json
import random
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

STEP_COLUMNS = (
    "num_decodes",
    "decode_context_tokens",
    "num_prefills",
    "prefill_tokens",
    "prefill_attention_pairs",
    "num_preemptions",
    "num_running",
    "num_waiting",
    "num_free_blocks",
    "num_steady_decodes",
)
SWITCHES = list(itertools.product((False, True), repeat=5))
NUM_SMALL, NUM_LARGE = 5 * len(SWITCHES), 6
REVEALING = ((1074, 93), (1156, 31), (1131, 143), (1104, 143))
"""Scenarios, as seed and number, in which rare events decide: blocks of equal contents, requests that end at once."""
MAX_MODEL_LEN = 65536
MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": MAX_MODEL_LEN,
    "torch_dtype": "bfloat16",
}


@dataclass
class Rules:
    """The scheduler's settings, named as in `maitre.simulator.rules.SchedulerRules`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int
    block_size: int
    enable_prefix_caching: bool
    whole_prompt_gate: bool
    watermark: float
    async_scheduling: bool
    long_prefill_token_threshold: int
    priority_policy: bool


@dataclass
class Requests:
    """The requests in order of arrival; one entry each, or none where all are alike."""

    prompt_tokens: list[int]
    output_tokens: list[int]
    arrival_tick: list[int] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    prefix_hashes: list[list[int]] = field(default_factory=list)
    prefix_block_tokens: int | None = None


@dataclass
class Scenario:
    """One server and its requests."""

    rules: Rules
    requests: Requests


# scenarios


def draw_scenarios(seed: int) -> Iterator[Scenario]:
    """Every combination of the five on-off switches five times, everything else at random; then six larger ones."""
    for number in range(NUM_SMALL + NUM_LARGE):
        yield draw_numbered(seed, number)


def draw_numbered(seed: int, number: int) -> Scenario:
    """One of the scenarios of a seed."""
    rng = random.Random(f"{seed}-{number}")  # noqa: S311
    if number < NUM_SMALL:
        return draw_scenario(rng, 60, *SWITCHES[number % len(SWITCHES)])
    number -= NUM_SMALL
    return draw_scenario(rng, 300, number % 2 == 0, number < 4, number == 3, number in (1, 2), number != 2)


def draw_scenario(
    rng: random.Random,
    max_num_requests: int,
    is_async: bool,  # noqa: FBT001
    caches: bool,  # noqa: FBT001
    by_priority: bool,  # noqa: FBT001
    arrives_later: bool,  # noqa: FBT001
    gate: bool,  # noqa: FBT001
) -> Scenario:
    """A server and requests that suit each other: tight pools and budgets are as likely as roomy ones."""
    block_size = rng.choice((4, 8, 16, 32))
    requests = draw_requests(rng, rng.randint(max(5, max_num_requests // 5), max_num_requests), block_size, caches)
    if arrives_later:
        gap = rng.choice((0.5, 2, 8))
        ticks = itertools.accumulate(int(rng.expovariate(1 / gap)) for _ in requests.prompt_tokens)
        requests.arrival_tick = list(ticks)
    if by_priority:
        requests.priority = [rng.randint(-2, 2) for _ in requests.prompt_tokens]
    max_num_seqs = rng.choice((1, 2, 4, 8, 16, 64) if max_num_requests <= 60 else (32, 64, 128))
    rules = Rules(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + rng.choice((0, 1, 7, 32, 100, 256, 2048)),
        num_gpu_blocks=draw_pool(rng, requests, max_num_seqs, block_size),
        block_size=block_size,
        enable_prefix_caching=caches,
        whole_prompt_gate=gate,
        watermark=rng.choice((0.0, 0.0, 0.05, 0.1)),
        async_scheduling=is_async,
        long_prefill_token_threshold=rng.choice((0, 0, 5, 16, 50)),
        priority_policy=by_priority,
    )
    return Scenario(rules, requests)


def draw_pool(rng: random.Random, requests: Requests, max_num_seqs: int, block_size: int) -> int:
    """Blocks, the null block included: just enough for the largest request, up to enough for all that can run."""
    blocks = [
        -(-(prompt + output) // block_size)
        for prompt, output in zip(requests.prompt_tokens, requests.output_tokens, strict=True)
    ]
    roomy = sum(sorted(blocks)[-max_num_seqs:])
    return 1 + max(*blocks, int(roomy * rng.choice((0.2, 0.4, 0.6, 1.0))))


def draw_requests(rng: random.Random, count: int, block_size: int, caches: bool) -> Requests:  # noqa: FBT001
    """Prompts and outputs of mixed lengths; with prefix caching, mostly with shared prefixes."""
    prompt_median, output_median = rng.choice((8, 40, 120, 300)), rng.choice((2, 10, 30, 60))
    prompts = [min(max(1, int(rng.lognormvariate(0, 0.8) * prompt_median)), 4 * prompt_median) for _ in range(count)]
    outputs = [min(max(1, int(rng.lognormvariate(0, 0.8) * output_median)), 4 * output_median) for _ in range(count)]
    if rng.random() < 0.25:  # whole blocks: the last one must be computed again, although it is cached
        prompts = [-(-n // block_size) * block_size for n in prompts]
    requests = Requests(prompts, outputs)
    if caches and rng.random() < 0.85:
        share_prefixes(rng, requests, block_size)
    return requests


def share_prefixes(rng: random.Random, requests: Requests, block_size: int) -> None:
    """Let prompts go on from common beginnings, or be the same from beginning to end."""
    chunk = requests.prefix_block_tokens = int(block_size * rng.choice((1, 1, 2, 4, 0.5, 1.5)))
    hashes = itertools.count()
    trunks = [list(itertools.islice(hashes, rng.randint(1, 12))) for _ in range(rng.randint(1, 6))]
    twin_share = rng.choice((0, 0.2, 0.6))
    for index, num_tokens in enumerate(requests.prompt_tokens):
        if index and rng.random() < twin_share:
            twin = rng.randrange(index)
            requests.prompt_tokens[index] = requests.prompt_tokens[twin]
            requests.prefix_hashes.append(requests.prefix_hashes[twin])
            continue
        num_chunks = -(-num_tokens // chunk)
        trunk = rng.choice(trunks)
        shared = trunk[: rng.randint(0, min(num_chunks, len(trunk)))]
        requests.prefix_hashes.append(shared + list(itertools.islice(hashes, num_chunks - len(shared))))


def stage_scenarios() -> Iterator[Scenario]:
    """Rare victims of the priority policy: one that waited in the step before, one that was served in the same step."""
    for is_async, caches in itertools.product((False, True), repeat=2):
        about = {
            "block_size": 4,
            "enable_prefix_caching": caches,
            "whole_prompt_gate": False,
            "watermark": 0.0,
            "async_scheduling": is_async,
            "priority_policy": True,
        }
        # all need a third block at once: the first request gives its own away, and the last one does a step later
        rules = Rules(4, 64, num_gpu_blocks=9, long_prefill_token_threshold=0, **about)
        yield Scenario(rules, Requests([3, 4, 4, 4], [12, 7, 12, 12], [0, 1, 1, 1], priority=[9, 1, 1, 4]))
        # the first request takes the last free blocks for its prompt, and loses it to the second one in the same step
        rules = Rules(2, 16, num_gpu_blocks=19, long_prefill_token_threshold=8, **about)
        yield Scenario(rules, Requests([68, 4], [4, 12], [0, 1], priority=[5, 0]))


# vLLM


class Recorder:
    """Drives one scheduler of vLLM through a scenario and writes down every step."""

    def __init__(self, scenario: Scenario, model: Path) -> None:
        self.rules, self.requests = scenario.rules, scenario.requests
        self.scheduler = build_scheduler(scenario.rules, model)
        self.steps: list[tuple[int, ...]] = []
        self.token_steps: dict[str, list[int]] = defaultdict(list)
        """Steps that computed the output tokens of each request."""
        self.token_gaps: list[tuple[int, int]] = []
        """Steps of two consecutive tokens of a request with a preemption or a step without a token in between."""
        self.first_scheduled: dict[str, tuple[int, int]] = {}
        """Step of the first admission, and tokens that were cached by then."""
        self.num_preemptions: dict[str, int] = {}
        self._preemptions_at_token: dict[str, int] = {}
        self._token_ids = itertools.count()
        self._chunks: dict[int, list[int]] = {}

    def record(self) -> dict[str, Any]:
        """Run all requests to their end."""
        waiting = deque(enumerate(self.requests.arrival_tick or [0] * len(self.requests.prompt_tokens)))
        queue: deque[tuple[Any, ModelRunnerOutput]] = deque()
        for tick in itertools.count():
            while waiting and waiting[0][1] <= tick:
                self.scheduler.add_request(self.make_request(waiting.popleft()[0]))
            self.run_engine(queue)
            if not (waiting or queue or self.scheduler.has_requests()):
                return self.describe()
        raise AssertionError

    def run_engine(self, queue: deque[tuple[Any, ModelRunnerOutput]]) -> None:
        """One round of `EngineCore.step_with_batch_queue` with two batches, or of `EngineCore.step`."""
        num_batches = 2 if self.rules.async_scheduling else 1
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            model_executed = output.total_num_scheduled_tokens > 0
            queue.append((output, self.compute(output)))
            if len(queue) < num_batches and (model_executed or self.scheduler.has_requests()):
                return
        if queue:
            self.scheduler.update_from_output(*queue.popleft())

    def compute(self, output: Any) -> ModelRunnerOutput:
        """Write a step down, and give each request that is through with its tokens the next one."""
        scheduled, queues = output.num_scheduled_tokens, self.count_queues()
        if not scheduled:
            return EMPTY_MODEL_RUNNER_OUTPUT
        step = len(self.steps)
        work, steady = self.count_work(scheduled), 0
        sampled = []
        for request_id in scheduled:
            if self.scheduler.requests[request_id].is_prefill_chunk:
                sampled.append([])
                continue
            sampled.append([next(self._token_ids)])
            steady += self.count_token(request_id, step)
        self.steps.append((*work, *queues, steady))
        req_ids = list(scheduled)
        positions = {request_id: position for position, request_id in enumerate(req_ids)}
        return ModelRunnerOutput(req_ids=req_ids, req_id_to_index=positions, sampled_token_ids=sampled)

    def count_token(self, request_id: str, step: int) -> bool:
        """Write an output token down; true if its predecessor came out of the step before."""
        steps, num_preemptions = self.token_steps[request_id], self.num_preemptions[request_id]
        was_preempted = num_preemptions > self._preemptions_at_token.get(request_id, 0)
        is_steady = steps[-1:] == [step - 1] and not was_preempted
        if steps and not is_steady:
            self.token_gaps.append((steps[-1], step))
        steps.append(step)
        self._preemptions_at_token[request_id] = num_preemptions
        return is_steady

    def count_work(self, scheduled: dict[str, int]) -> tuple[int, ...]:
        """Decodes and their context; prefills, their tokens and their query-key pairs."""
        decodes = context = prefills = prefill_tokens = pairs = 0
        for request_id, n in scheduled.items():
            request = self.scheduler.requests[request_id]
            computed = request.num_computed_tokens - n  # vLLM has advanced it already
            self.first_scheduled.setdefault(request_id, (len(self.steps), computed))
            if n == 1 and computed >= request.num_prompt_tokens:
                decodes, context = decodes + 1, context + computed + 1
            else:
                prefills, prefill_tokens = prefills + 1, prefill_tokens + n
                pairs += n * computed + n * (n + 1) // 2
        return decodes, context, prefills, prefill_tokens, pairs

    def count_queues(self) -> tuple[int, ...]:
        """Preemptions since the last tick; who runs and waits now; free blocks."""
        before = sum(self.num_preemptions.values())
        self.num_preemptions |= {key: request.num_preemptions for key, request in self.scheduler.requests.items()}
        num_preemptions = sum(self.num_preemptions.values()) - before
        num_free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return num_preemptions, len(self.scheduler.running), len(self.scheduler.waiting), num_free

    def make_request(self, index: int) -> Request:
        """A request as the engine's front end hands it over."""
        requests = self.requests
        caches = self.rules.enable_prefix_caching
        return Request(
            request_id=str(index),
            prompt_token_ids=self.make_prompt(index),
            sampling_params=SamplingParams(max_tokens=requests.output_tokens[index], ignore_eos=True),
            pooling_params=None,
            arrival_time=float(index),
            priority=requests.priority[index] if requests.priority else 0,
            block_hasher=get_request_block_hasher(self.rules.block_size, sha256) if caches else None,
        )

    def make_prompt(self, index: int) -> list[int]:
        """Token ids: equal hashes give equal chunks, and everything else is new."""
        num_tokens, prompt = self.requests.prompt_tokens[index], []
        for prefix_hash in self.requests.prefix_hashes[index] if self.requests.prefix_hashes else ():
            if prefix_hash not in self._chunks:
                self._chunks[prefix_hash] = list(itertools.islice(self._token_ids, self.requests.prefix_block_tokens))
            prompt += self._chunks[prefix_hash]
        return prompt[:num_tokens] + list(itertools.islice(self._token_ids, max(0, num_tokens - len(prompt))))

    def describe(self) -> dict[str, Any]:
        """The scenario and what came of it."""
        request_ids = [str(index) for index in range(len(self.requests.prompt_tokens))]
        return {
            "rules": asdict(self.rules),
            "requests": {name: value for name, value in asdict(self.requests).items() if value},
            "steps": dict(zip(STEP_COLUMNS, map(list, zip(*self.steps, strict=True)), strict=True)),
            "first_scheduled_step": [self.first_scheduled[key][0] for key in request_ids],
            "num_cached_tokens": [self.first_scheduled[key][1] for key in request_ids],
            "first_token_step": [self.token_steps[key][0] for key in request_ids],
            "last_token_step": [self.token_steps[key][-1] for key in request_ids],
            "num_preemptions": [self.num_preemptions[key] for key in request_ids],
            "token_gaps": sorted(self.token_gaps),
        }


def build_scheduler(rules: Rules, model: Path) -> Scheduler:
    """A scheduler without an engine, as vLLM's own unit tests build it."""
    config = VllmConfig(
        model_config=ModelConfig(str(model), skip_tokenizer_init=True, max_model_len=MAX_MODEL_LEN),
        scheduler_config=SchedulerConfig(
            max_num_seqs=rules.max_num_seqs,
            max_num_batched_tokens=rules.max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            is_encoder_decoder=False,
            long_prefill_token_threshold=rules.long_prefill_token_threshold,
            policy="priority" if rules.priority_policy else "fcfs",
            scheduler_reserve_full_isl=rules.whole_prompt_gate,
            watermark=rules.watermark,
            async_scheduling=rules.async_scheduling,
        ),
        cache_config=CacheConfig(block_size=rules.block_size, enable_prefix_caching=rules.enable_prefix_caching),
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.num_gpu_blocks = rules.num_gpu_blocks
    config.scheduler_config.async_scheduling = rules.async_scheduling  # the CPU platform turns it off
    check_settings(config, rules)
    spec = FullAttentionSpec(block_size=rules.block_size, num_kv_heads=2, head_size=32, dtype=torch.bfloat16)
    scheduler_class = AsyncScheduler if rules.async_scheduling else Scheduler
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(rules.num_gpu_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=rules.block_size,
    )


def check_settings(config: VllmConfig, rules: Rules) -> None:
    """Stop if vLLM has adjusted a setting to the platform: a recording must not say one thing and show another."""
    scheduler, cache = config.scheduler_config, config.cache_config
    assert scheduler.max_num_batched_tokens == rules.max_num_batched_tokens
    assert scheduler.enable_chunked_prefill
    assert scheduler.async_scheduling == rules.async_scheduling
    assert scheduler.long_prefill_token_threshold == rules.long_prefill_token_threshold
    assert cache.block_size == rules.block_size
    assert cache.enable_prefix_caching == rules.enable_prefix_caching


def record_scenario(scenario: Scenario) -> dict[str, Any]:
    """What vLLM does with a scenario."""
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        return Recorder(scenario, Path(folder)).record()


def main() -> None:
    """Record all scenarios into one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    scenarios = itertools.chain(
        draw_scenarios(options.seed), itertools.starmap(draw_numbered, REVEALING), stage_scenarios()
    )
    content = {
        "schema": "maitre-schedules-1",
        "vllm_version": importlib.metadata.version("vllm").split("+")[0],
        "scenarios": [record_scenario(scenario) for scenario in scenarios],
    }
    options.out.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))
    steps = [len(scenario["steps"]["num_decodes"]) for scenario in content["scenarios"]]
    print(f"{len(steps)} scenarios, {sum(steps)} steps, {options.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
