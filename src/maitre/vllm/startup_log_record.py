"""What a start-up log says of one start."""

from __future__ import annotations

from maitre.records import Record
from maitre.vllm.failures import FailureCode

ONE_OF_TP = "one of repeated TP lines"
SUM_OF_DP = "sum over DP engines"
MIN_OF_PP = "min over PP ranks"
MIN_OF_TP = "min over TP ranks"


class EngineCache(Record):
    """The KV pool of one engine; several engines are data parallel."""

    engine: int
    kv_cache_tokens: int | None
    num_gpu_blocks: int | None
    max_concurrency: float | None


class Startup(Record):
    """One start of a server, as its log shows it. None: printed nowhere."""

    place: str = ""
    """Pod, container or host, where the log names it."""
    version: str | None = None
    kv_cache_tokens: int | None = None
    """The pool of the whole deployment as printed; where only blocks are, those times their size."""
    num_gpu_blocks: int | None = None
    num_cpu_blocks: int | None = None
    block_size: int | None = None
    max_concurrency: float | None = None
    """Requests of `max_concurrency_at_len` tokens that the pool holds at once, over all engines."""
    max_concurrency_at_len: int | None = None
    full_length_tokens: int | None = None
    """`max_concurrency` times its length: what long requests can use. A hybrid model's token line may differ."""
    two_lines_disagree: bool | None = None
    """Whether the token line and the concurrency line differ by more than their rounding."""
    available_kv_gib: float | None = None
    """Memory for KV cache on the poorest GPU (or CPU node)."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    combine_rule: str | None = None
    """How the lines of several ranks make one figure."""
    failure: str | None = None
    """None when nothing failed; kinds of running out of memory besides the sampler's are `oom-other`."""
    failure_code: FailureCode | None = None
    """The same, as exact as the log allows."""
    failure_message: str | None = None
    remedy: str | None = None
    is_ready: bool = False
    """Whether it came to serve requests."""
    engines: int | None = None
    """Engines that show a pool; several are data parallel."""
    by_engine: tuple[EngineCache, ...] = ()

    model: str | None = None
    max_model_len: int | None = None
    estimated_max_model_len: int | None = None
    """The longest request that fits, by the error's own estimate."""
    kv_needed_gib: float | None = None
    """KV memory that one request of max_model_len needs, from the error."""
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: str | None = None
    dtype: str | None = None
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    enforce_eager: bool | None = None
    hybrid_manager_disabled: bool = False
    loads_compiled_graphs: bool = False
    """Whether compiled graphs came from the cache: the activation peak then lacks what compiling takes."""

    device_gib: float | None = None
    """The device's memory."""
    weights_gib: float | None = None
    """On one GPU."""
    consumed_gib: float | None = None
    """Weights and memory outside PyTorch together, where only their sum is printed (0.27 and later)."""
    peak_activation_gib: float | None = None
    non_torch_gib: float | None = None
    cuda_graph_gib: float | None = None
    """As estimated and subtracted before the pool was sized."""
    captured_graph_gib: float | None = None
    """As measured when the graphs were captured, after the pool was sized."""
    notes: tuple[str, ...] = ()
    """What a reader should know of these figures."""

    @property
    def has_pool(self) -> bool:
        """Whether it says how large the KV pool is."""
        return self.kv_cache_tokens is not None or self.num_gpu_blocks is not None
