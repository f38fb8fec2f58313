"""How every verb is told the server: a model on a GPU, and vLLM's flags."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from maitre.cli.numbers import Count, Whole

if TYPE_CHECKING:
    from maitre.gpus import Gpu
    from maitre.models import AttentionGeometry, Checkpoint, Model
    from maitre.records import ServerConfig

Share = Annotated[float, Parameter(validator=Number(gt=0, lte=1))]


@Parameter(name="*")
@dataclass(frozen=True)
class ServerOptions:
    """The server: a model on a GPU, and vLLM's flags, each at vLLM's own default when it is not given."""

    _: KW_ONLY
    model: str | None = None
    """A model's directory or config.json, or the name of a well-known one such as Qwen2.5-14B."""
    gpu: str | None = None
    """The GPU, such as H200, A100-80GB or "RTX 4090"; with tensor parallelism each of them."""
    dtype: str = "auto"
    """Data type of the weights."""
    kv_cache_dtype: str = "auto"
    """Data type of the KV cache: auto, bfloat16, fp8 …"""
    tensor_parallel_size: Count = 1
    """GPUs that share the model."""
    gpu_memory_utilization: Share | None = None
    """Share of the GPU's memory that vLLM takes."""
    max_model_len: str | None = None
    """Longest sequence in tokens; the model's own when not given."""
    block_size: Count = 16
    """Tokens in a block of the KV cache."""
    vllm_version: str = "0.26.0"
    """Defaults, memory accounting and scheduler differ by version."""

    def model_len(self) -> int | None:
        """--max-model-len as a number."""
        from maitre.units import parse_token_count

        return parse_token_count(self.max_model_len) if self.max_model_len is not None else None

    def load(self) -> tuple[Model, Gpu]:
        """The model and the GPU.

        Raises:
            UsageError: one of them is not given, or no such GPU.
            InputError: the model's files are wrong.
            UnsupportedError: an architecture that is not covered.
        """
        from maitre.models import load_model

        name, gpu = self._model_and_gpu()
        return load_model(name), gpu

    def load_checkpoint(self) -> tuple[Checkpoint, Gpu]:
        """Like `load`, for what fills a GPU: also models that the simulator does not replay.

        Raises:
            UsageError: one of them is not given, or no such GPU.
            InputError: the model's files are wrong.
            UnsupportedError: a model whose memory is not computed.
        """
        from maitre.models import load_checkpoint

        name, gpu = self._model_and_gpu()
        return load_checkpoint(name), gpu

    def _model_and_gpu(self) -> tuple[str, Gpu]:
        from maitre.errors import UsageError
        from maitre.gpus import find_gpu

        if self.model is None or self.gpu is None:
            missing = "model" if self.model is None else "GPU"
            raise UsageError(f"no {missing} is given", "--model NAME_OR_DIRECTORY --gpu GPU")
        return self.model, find_gpu(self.gpu)

    def server(
        self,
        model: AttentionGeometry,
        gpu: Gpu,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
    ) -> ServerConfig:
        """The server that these flags start, vLLM's defaults filled in."""
        from maitre.records import ServerConfig
        from maitre.vllm import default_cell, default_gpu_memory_utilization

        length = self.model_len() or model.max_position_embeddings
        cell = default_cell(
            self.vllm_version,
            gpu.name,
            gpu.memory_bytes,
            length,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        return ServerConfig(
            model=self._served_name(model),
            vllm_version=self.vllm_version,
            dtype=self.dtype,
            kv_cache_dtype=self.kv_cache_dtype,
            tensor_parallel_size=self.tensor_parallel_size,
            gpu_memory_utilization=self.gpu_memory_utilization or default_gpu_memory_utilization(self.vllm_version),
            max_model_len=length,
            block_size=self.block_size,
            **cell.model_dump(),
        )

    def _served_name(self, model: AttentionGeometry) -> str:
        """What `vllm serve` is given: the directory that the user named, or else the model's public name."""
        from pathlib import Path

        path = Path(self.model or "")
        if self.model and path.exists():
            return str(path.parent if path.is_file() else path)
        return model.name


NO_SERVER = ServerOptions()
"""Nothing given yet: the default of a verb's parameter."""


@Parameter(name="*")
@dataclass(frozen=True)
class SchedulerOptions:
    """vLLM's other scheduler flags, each at vLLM's own default when it is not given."""

    _: KW_ONLY
    enable_prefix_caching: bool = True
    """Requests share the KV cache of equal prefixes."""
    long_prefill_token_threshold: Whole = 0
    """Most prompt tokens of one request in a step; 0 for no limit."""
    watermark: float = 0.0
    """Share of the KV pool that stays free when a request is admitted (vLLM 0.24 and later)."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """First come, first served, or by priority."""

    def apply(self, server: ServerConfig) -> ServerConfig:
        """The server with these flags.

        Raises:
            UsageError: a value that vLLM refuses.
        """
        from dataclasses import asdict

        from maitre.errors import UsageError

        if not 0 <= self.watermark < 1:
            raise UsageError(f"watermark {self.watermark} is not a share", "give 0 ≤ watermark < 1, such as 0.05")
        if self.long_prefill_token_threshold < 0:
            raise UsageError("long_prefill_token_threshold is negative", "give 0 for no limit")
        return server.model_copy(update={k: v for k, v in asdict(self).items() if k != "_"})


DEFAULT_SCHEDULER = SchedulerOptions()
"""vLLM's defaults: the default of a verb's parameter."""
