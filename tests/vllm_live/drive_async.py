"""Run by vLLM's own Python: the real AsyncScheduler under the dials, with a model that always says token 7.

vLLM on a CPU never schedules asynchronously by itself. Usage: drive_async.py MODEL RUN MAX_NUM_SEQS
MAX_NUM_BATCHED_TOKENS NUM_GPU_BLOCKS PROMPT:OUTPUT,…; MAITRE_DIALS_DIR names the directory of the dials.
"""

import json
import os
import random
import sys
from collections import deque
from pathlib import Path

import torch
from maitre_dials import DialScheduler
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

NUM_BLOCKS, BLOCK_SIZE = 2000, 16


def make_scheduler(model):
    limits = {"max_model_len": 2048, "max_num_seqs": 256, "max_num_batched_tokens": 4096}
    config = EngineArgs(
        model=model,
        tokenizer=f"{model}/tokenizer",
        enable_prefix_caching=False,
        enforce_eager=True,
        block_size=BLOCK_SIZE,
        **limits,
    ).create_engine_config()
    config.scheduler_config.async_scheduling = True
    config.cache_config.num_gpu_blocks = NUM_BLOCKS
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    scheduler = DialScheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(NUM_BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        log_stats=True,
    )
    assert isinstance(scheduler, AsyncScheduler)
    return scheduler


def make_request(run, index, prompt, output):
    return Request(
        request_id=f"cmpl-maitre-{run}-0-{index}-{random.randrange(16**8):08x}",
        prompt_token_ids=[random.randrange(1000) for _ in range(prompt)],
        sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
        pooling_params=None,
    )


def serve(scheduler):
    """Two steps in flight, as the engine core has them."""
    in_flight = deque()
    while scheduler.has_unfinished_requests() or in_flight:
        if scheduler.has_unfinished_requests() and len(in_flight) < 2:
            output = scheduler.schedule()
            ids = list(output.num_scheduled_tokens)
            if ids:
                in_flight.append((output, ids, [not scheduler.requests[i].is_prefill_chunk for i in ids]))
                if len(in_flight) < 2:
                    continue
        output, ids, is_sampled = in_flight.popleft()
        tokens = [[7] if sampled else [] for sampled in is_sampled]
        places = {name: place for place, name in enumerate(ids)}
        result = ModelRunnerOutput(
            req_ids=ids, req_id_to_index=places, sampled_token_ids=tokens, logprobs=None, prompt_logprobs_dict={},
            pooler_output=[],
        )  # fmt: skip
        scheduler.update_from_output(output, result)


def main():
    model, run, seqs, budget, blocks, lengths = sys.argv[1:]
    scheduler = make_scheduler(model)
    control = {"run": run, "max_num_seqs": seqs, "max_num_batched_tokens": budget, "num_gpu_blocks": blocks}
    path = Path(os.environ["MAITRE_DIALS_DIR"]) / "control.json"
    path.write_text(json.dumps({name: int(value) for name, value in control.items()}))
    for index, length in enumerate(lengths.split(",")):
        scheduler.add_request(make_request(run, index, *map(int, length.split(":"))))
    serve(scheduler)


if __name__ == "__main__":
    main()
