"""A model on a GPU with its dials: the KV pool and the step time that the project's own tables give it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from maitre.calibration import calibration_for
from maitre.gpus import find_gpu
from maitre.models import load_model
from maitre.records import Cell, ServerConfig
from maitre.setup import Setup
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.step_time import StepTime
from maitre.vllm.defaults import capture_sizes
from maitre.workload.synthetic import LengthSpec


@dataclass(frozen=True, slots=True)
class Host:
    """One server."""

    gpu: str
    server: ServerConfig
    num_gpu_blocks: int
    step_time: StepTime
    """With the CUDA graphs of the dials."""
    is_pool_overridden: bool = False
    """`--num-gpu-blocks-override` gives the pool, not the memory that is left."""

    @property
    def rules(self) -> SchedulerRules:
        """The scheduler's settings."""
        return SchedulerRules.of_server(self.server, self.num_gpu_blocks)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the usable blocks hold."""
        return (self.num_gpu_blocks - 1) * self.server.block_size

    def turned(self, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None) -> Host:
        """The same server with other dials; its KV pool is kept, so that nothing but the dials differs."""
        cell = Cell(
            max_num_seqs=max_num_seqs or self.server.max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens or self.server.max_num_batched_tokens,
        )
        return replace(self, server=self.server.at(cell), step_time=_with_graphs(self.step_time, self.server, cell))

    def with_pool(self, num_gpu_blocks: int) -> Host:
        """The same server with `--num-gpu-blocks-override`; vLLM takes no pool that cannot hold one max_model_len."""
        least = -(-self.server.max_model_len // self.server.block_size) + 1
        return replace(self, num_gpu_blocks=max(num_gpu_blocks, least), is_pool_overridden=True)

    def without_prefix_caching(self) -> Host:
        """The same server with `--no-enable-prefix-caching`."""
        return replace(self, server=self.server.model_copy(update={"enable_prefix_caching": False}))


def find_host(model: str, gpu: str, cell: Cell, gpu_memory_utilization: float, max_model_len: int) -> Host:
    """A server by the names of its model and GPU.

    Args:
        model: of the embedded table.
        gpu: of the embedded table.
        cell: the dials.
        gpu_memory_utilization: as vLLM's flag; decides the KV pool.
        max_model_len: tokens.

    Raises:
        DoesNotFitError: the model leaves no room for a pool.
    """
    server = ServerConfig(
        model=model,
        gpu_memory_utilization=gpu_memory_utilization,
        max_model_len=max_model_len,
        max_num_seqs=cell.max_num_seqs,
        max_num_batched_tokens=cell.max_num_batched_tokens,
    )
    pool = Setup(server, load_model(model), find_gpu(gpu)).kv_budget(cell)
    step_time = _step_time(model, gpu, pool.kv_bytes_per_token or 0)
    return Host(gpu, server, pool.num_gpu_blocks, _with_graphs(step_time, server, cell))


def footprint_tokens(lengths: LengthSpec) -> float:
    """KV cache that a running request holds on average: its prompt and half of its output, by mean lengths.

    Long outputs stay longer, so they count by their length.
    """
    prompt, output = mean_tokens(lengths)
    return prompt + output * _exp_sigma2(lengths.output_sigma) / 2


def mean_tokens(lengths: LengthSpec) -> tuple[float, float]:
    """Mean prompt and output tokens; the mean of a log-normal is median · exp(σ²/2)."""
    prompt = lengths.prompt_median * _exp_sigma2(lengths.prompt_sigma) ** 0.5
    return prompt, lengths.output_median * _exp_sigma2(lengths.output_sigma) ** 0.5


def rate_for(host: Host, lengths: LengthSpec, num_running: float) -> float:
    """The rate in requests/s at which about so many requests run on average: λ = R / (output · step), by Little's law.

    A step holds R decodes and, on average, the prompts of R / output new requests.
    """
    prompt, output = mean_tokens(lengths)
    times = host.step_time
    context = num_running * footprint_tokens(lengths)
    chunk = min(prompt, host.server.max_num_batched_tokens)
    decode_s = times.decode_s(round(num_running), round(context))
    prompt_s = times.mixed_s(round(num_running), round(context), round(chunk), round(chunk**2 / 2)) - decode_s
    chunks_per_step = num_running / output * prompt / chunk
    return num_running / (output * (decode_s + prompt_s * chunks_per_step))


def prompt_load(host: Host, lengths: LengthSpec, rate_rps: float) -> float:
    """The share of time that computing prompts takes at a rate, above that of the decodes beside them."""
    return rate_rps * mean_tokens(lengths)[0] * host.step_time.b1


def _exp_sigma2(sigma: float) -> float:
    return float(2.718281828459045 ** (sigma**2))


@cache
def _step_time(model: str, gpu: str, kv_bytes_per_token: int) -> StepTime:
    plain = ServerConfig(model=model, max_model_len=1, max_num_seqs=1, max_num_batched_tokens=1)
    return calibration_for(load_model(model), find_gpu(gpu), plain, kv_bytes_per_token).step_time


def _with_graphs(step_time: StepTime, server: ServerConfig, cell: Cell) -> StepTime:
    return step_time.model_copy(update={"graph_sizes": capture_sizes(server.vllm_version, cell)})
