"""Run by vLLM's own Python: how it lays out the cache of models, built without weights. Cases on stdin as JSON lines.

Each line is {"config", "flags", "max_model_len"} as in tests/data/cache_layouts_vllm_0.32.0.json; each answer has some
of its keys. vLLM wants a mixture of experts first, so that it sets its expert group up.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.models import ModelRegistry
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils

POOL_BYTES = 80 * 2**30


def engine_config(case):
    directory = Path(tempfile.mkdtemp())
    (directory / "config.json").write_text(json.dumps(case["config"]))
    flags = {"disable_hybrid_kv_cache_manager": case["flags"].get("disable_hybrid_kv_cache_manager")}
    if "speculation" in case["flags"]:
        number = case["flags"]["speculation"]["num_speculative_tokens"]
        flags["speculative_config"] = {"method": "ngram", "num_speculative_tokens": number, "prompt_lookup_max": 3}
    return EngineArgs(
        model=str(directory),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        block_size=16,
        max_model_len=case["max_model_len"],
        max_num_batched_tokens=2048,
        max_num_seqs=64,
        enforce_eager=True,
        enable_prefix_caching=case["flags"].get("enable_prefix_caching", False),
        async_scheduling=False,
        **flags,
    ).create_engine_config()


def layout_of(config):
    architecture = config.model_config.architecture
    model_class, _ = ModelRegistry.resolve_model_cls(architecture, model_config=config.model_config)
    config.cache_config.kv_cache_layout = "LBNHC"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = model_class(vllm_config=config, prefix="")
    type(current_platform).update_block_size_for_backend(config)
    layers = config.compilation_config.static_forward_context.items()
    specs = {
        name: spec
        for name, layer in layers
        if isinstance(layer, AttentionLayerBase)
        and getattr(layer, "kv_sharing_target_layer_name", None) is None
        and (spec := layer.get_kv_cache_spec(config)) is not None
    }
    groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    pool = kv_cache_utils.get_kv_cache_config_from_groups(config, groups, POOL_BYTES)
    del model
    return {
        "num_blocks": pool.num_blocks,
        "num_groups": len(groups),
        "concurrency_80gib": kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, pool),
    }


def main():
    answers, started = os.fdopen(os.dup(1), "w"), False
    os.dup2(2, 1)  # vLLM's own lines
    for line in sys.stdin:
        config = engine_config(json.loads(line))
        with set_current_vllm_config(config):
            if not started:
                rendezvous = f"file://{tempfile.mkdtemp()}/rendezvous"
                init_distributed_environment(1, 0, rendezvous, 0, backend="gloo")
                ensure_model_parallel_initialized(1, 1)
                started = True
            answers.write(json.dumps(layout_of(config)) + "\n")
            answers.flush()


main()
