"""As much of vLLM as maitre's dials touch, with its names: they run on it as they run on the real one."""

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

POOL, BLOCK, LONGEST = 65, 16, 256
MODEL = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
    "max_position_embeddings": 32768,
}  # fmt: skip


@dataclass
class Request:
    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    blocks: list = field(default_factory=list)

    def is_finished(self):
        return self.num_output_tokens >= self.max_tokens


class Pool:
    """As much of vLLM's BlockPool as the dials touch."""

    def __init__(self, num_gpu_blocks):
        self.num_gpu_blocks = num_gpu_blocks
        self.free = list(range(1, num_gpu_blocks))

    def get_num_free_blocks(self):
        return len(self.free)

    def get_new_blocks(self, count):
        assert count <= len(self.free)
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def free_blocks(self, blocks):
        self.free = list(blocks) + self.free


class Manager:
    def __init__(self, pool):
        self.block_pool, self.watermark_blocks, self.num_resets = pool, 6, 0

    def reset_prefix_cache(self):
        self.num_resets += 1

    def free(self, request):
        self.block_pool.free_blocks(request.blocks)
        request.blocks = []


class Scheduler:
    """First come, first served, with vLLM's names, its assertion, and preemption of the last."""

    def __init__(self, vllm_config, **_):
        self.vllm_config, self.scheduler_config = vllm_config, vllm_config.scheduler_config
        self.cache_config = vllm_config.cache_config
        self.max_num_running_reqs = self.max_num_active_reqs = self.scheduler_config.max_num_seqs
        self.max_num_scheduled_tokens = self.scheduler_config.max_num_batched_tokens
        self.block_size, self.max_model_len = BLOCK, LONGEST
        self.kv_cache_manager = Manager(Pool(POOL))
        self.requests, self.waiting, self.running = {}, [], []
        is_old = vars(sys.modules["vllm.version"])["__version__"].startswith(("0.9", "0.10", "0.11"))
        self.preempt_by = self.preempt if is_old else self._preempt_request  # old schedulers have no such method

    def add_request(self, request):
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def schedule(self):
        budget, scheduled, pool = self.max_num_scheduled_tokens, {}, self.kv_cache_manager.block_pool
        for request in [*self.running, *self.waiting]:
            is_new = request not in self.running
            if is_new and (len(self.running) >= self.max_num_active_reqs or request not in self.waiting):
                break
            if not is_new and request not in self.running:
                continue
            n = min(request.num_prompt_tokens + request.num_output_tokens - request.num_computed_tokens, budget)
            need = -(-(request.num_computed_tokens + n) // BLOCK) - len(request.blocks)
            while need > pool.get_num_free_blocks() and not is_new and self.running[-1] is not request:
                self.preempt_by(self.running.pop())
            if n == 0 or need > pool.get_num_free_blocks():
                break
            request.blocks += pool.get_new_blocks(max(need, 0))
            if is_new:
                self.running.append(self.waiting.pop(0))
            scheduled[request.request_id], budget = n, budget - n
            request.num_computed_tokens += n
        assert len(self.running) <= self.max_num_running_reqs
        total = sum(scheduled.values())
        assert total <= self.scheduler_config.max_num_batched_tokens
        return SimpleNamespace(num_scheduled_tokens=scheduled, total_num_scheduled_tokens=total)

    def _preempt_request(self, request):
        self.preempt(request)

    def preempt(self, request):
        self.kv_cache_manager.free(request)
        request.num_computed_tokens = 0
        self.waiting.insert(0, request)

    def update_from_output(self, output):
        for request_id in output.num_scheduled_tokens:
            request = self.requests.get(request_id)
            if request and request.num_computed_tokens == request.num_prompt_tokens + request.num_output_tokens:
                request.num_output_tokens += 1
                if request.is_finished():
                    self.running.remove(request)
                    self._free_request(request)
        return {}

    def abort(self, request):
        (self.running if request in self.running else self.waiting).remove(request)
        request.max_tokens = 0
        self._free_request(request)

    def _free_request(self, request):
        self.kv_cache_manager.free(request)
        del self.requests[request.request_id]


class AsyncScheduler(Scheduler):
    """vLLM wants to see a subclass of it where scheduling is asynchronous."""


def modules(version):
    """vLLM's modules, by name."""
    contents = {
        "vllm.version": {"__version__": version},
        "vllm.platforms": {"current_platform": SimpleNamespace(get_device_name=lambda: "NVIDIA H200")},
        "vllm.v1.core.sched.scheduler": {"Scheduler": Scheduler},
        "vllm.v1.core.sched.async_scheduler": {"AsyncScheduler": AsyncScheduler},
    }
    made = {}
    for name in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched", *contents):
        made[name] = ModuleType(name)
        made[name].__path__ = []
        vars(made[name]).update(contents.get(name, {}))
    return made


def make_config(*, is_async=False, caching=True, **more):
    scheduler = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "watermark": 0.1,
        "async_scheduling": is_async,
    } | more
    cache = {"enable_prefix_caching": caching, "cache_dtype": "auto", "gpu_memory_utilization": 0.92}
    model = SimpleNamespace(to_dict=lambda: MODEL | {"torch_dtype": object()})
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(**scheduler),
        cache_config=SimpleNamespace(**cache),
        parallel_config=SimpleNamespace(data_parallel_size=1, tensor_parallel_size=1),
        model_config=SimpleNamespace(dtype="torch.bfloat16", hf_config=model),
        speculative_config=None,
    )
