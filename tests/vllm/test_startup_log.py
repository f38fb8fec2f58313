"""Start-up logs: every public case, the wordings of every version and device, and why a start failed."""

import json

import pytest


def matches(expected, got):
    if isinstance(expected, dict):
        if "any_of" in expected:
            return any(matches(entry, got) for entry in expected["any_of"])
        if "present" in expected:
            return got is not None
        if "value" in expected:
            allowed = expected.get("abs", expected.get("rel", 0) * abs(expected["value"]))
            return got is not None and abs(got - expected["value"]) <= allowed
        return isinstance(got, dict) and all(matches(entry, got.get(key)) for key, entry in expected.items())
    if isinstance(expected, list):
        return isinstance(got, list) and len(expected) == len(got) and all(map(matches, expected, got))
    return got == expected


def public_cases(shared_path):
    for case in json.loads((shared_path / "cases" / "cases.json").read_text("utf-8")):
        if case["kind"] == "startup-log":
            yield case, b"".join((shared_path / "cases" / name).read_bytes() for name in case["files"])


ALSO = (
    "version", "max_model_len", "pipeline_parallel_size", "tensor_parallel_size", "gpu_memory_utilization",
    "cuda_graph_gib", "weights_gib", "full_length_tokens", "two_lines_disagree", "hybrid_manager_disabled",
    "kv_needed_gib", "estimated_max_model_len", "engines",
)  # fmt: skip


def test_every_public_start_up_is_read_as_it_must_be(shared_path, read_log):
    cases = [*public_cases(shared_path)]
    assert len(cases) >= 22
    wrong = []
    for case, content in cases:
        startups = [startup.model_dump(mode="json") for startup in read_log(content)]
        answer = startups[-1] | {"startups": startups}
        expected = case["expect"] | {key: value for key, value in case.get("also", {}).items() if key in ALSO}
        wrong += [(case["id"], key, answer.get(key)) for key in expected if not matches(expected[key], answer.get(key))]
    assert not wrong


V0 = "INFO 12-02 10:00:10 gpu_executor.py:113] "


V1 = "(EngineCore pid=951) INFO 08-20 00:00:00 [kv_cache_utils.py:2395] "


ON_STARTUP = (
    "Free memory on device (139.29/139.8 GiB) on startup. Desired GPU memory utilization is (0.9, 125.82 GiB). "
)

LINES = {
    "0.4": (V0 + "# GPU blocks: 7,000, # CPU blocks: 512", {"num_gpu_blocks": 7000, "num_cpu_blocks": 512}),
    "0.7 on CUDA": (V0 + "# cuda blocks: 27860, # CPU blocks: 9362", {"num_gpu_blocks": 27860, "num_cpu_blocks": 9362}),
    "0.7 on ROCm": (V0 + "# rocm blocks: 41, # CPU blocks: 9", {"num_gpu_blocks": 41, "num_cpu_blocks": 9}),
    "0.6 on a CPU": (V0 + "# CPU blocks: 1234", {"num_gpu_blocks": 1234, "num_cpu_blocks": None}),
    "0.7 on a CPU": (V0 + "# cpu blocks: 1234, # CPU blocks: 0", {"num_gpu_blocks": 1234, "num_cpu_blocks": 0}),
    "0.6 on a TPU": (V0 + "# TPU blocks: 88, # CPU blocks: 8", {"num_gpu_blocks": 88, "num_cpu_blocks": 8}),
    "0.7 with V1": (V0 + "# GPU blocks: 41234", {"num_gpu_blocks": 41234}),
    "0.9": (
        "Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: 24978",
        {"num_gpu_blocks": 24978},
    ),
    "0.10": (V1 + "GPU KV cache size: 2,042,016 tokens", {"kv_cache_tokens": 2_042_016}),
    "0.30 on XPU": (
        V1 + "XPU KV cache size: 87,296 tokens, Maximum concurrency for 4,096 tokens per request: 21.31x",
        {"kv_cache_tokens": 87_296, "max_concurrency": 21.31, "max_concurrency_at_len": 4096},
    ),
    "0.32 with host memory": (
        V1 + "GPU + host KV cache size: 9,000 tokens, Maximum concurrency for 1,000 tokens per request: 9.00x",
        {"kv_cache_tokens": 9000, "max_concurrency": 9.0},
    ),
    "a thousandfold concurrency": (
        "Maximum concurrency for 2,048 tokens per request: 1,997.08x",
        {"max_concurrency": 1997.08, "max_concurrency_at_len": 2048},
    ),
    "0.9 memory": ("Available KV cache memory: 54.96 GiB", {"available_kv_gib": 54.96}),
    "0.14 memory": ("Available KV cache memory: 6.5 GiB", {"available_kv_gib": 6.5}),
    "0.8 V0 memory": (
        V0 + "model weights take 15.00GiB; non_torch_memory takes 0.10GiB; PyTorch activation peak memory takes "
        "1.20GiB; the rest of the memory reserved for KV Cache is 54.90GiB.",
        {"available_kv_gib": 54.9, "weights_gib": 15.0, "non_torch_gib": 0.1, "peak_activation_gib": 1.2},
    ),
    "given bytes": (
        "Initial free memory 137.66 GiB, reserved 6.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes",
        {"available_kv_gib": 6.0},
    ),
    "CPU by itself": (
        "Auto set (4.0/15.84) GiB for KV cache on node 0, with 6 GiB requested memory",
        {"available_kv_gib": 4.0},
    ),
    "Ascend": (
        "Available memory: 53687091200, total memory: 65464696832",
        {"available_kv_gib": 50.0, "device_gib": 65464696832 / 2**30},
    ),
    "Gaudi": (
        "1.5 GiB reserved for HPUGraphs, 1 MiB reserved for KV cache dummy block 54.2 GiB reserved for usable KV cache",
        {"available_kv_gib": 54.2},
    ),
    "0.11 to 0.25 at DEBUG": (
        "torch peak memory increase: 7.03GiB; non-torch forward increase memory: 0.22GiB; weights memory: 27.57GiB.",
        {"peak_activation_gib": 7.03, "non_torch_gib": 0.22, "weights_gib": 27.57, "available_kv_gib": None},
    ),
    "0.10.2 decomposition": (
        ON_STARTUP + "Actual usage is 14.29 GiB for weight, 2.15 GiB for peak activation, 0.22 GiB for non-torch "
        "memory, and 0.89 GiB for CUDAGraph memory. Replace the config with `--kv-cache-memory=116086427648`",
        {
            "device_gib": 139.8, "gpu_memory_utilization": 0.9, "weights_gib": 14.29, "peak_activation_gib": 2.15,
            "non_torch_gib": 0.22, "available_kv_gib": None,
        },
    ),
    "0.27 decomposition": (
        ON_STARTUP + "Actual usage is 14.5 GiB for consumed memory (weights + non-torch), 2.1 GiB for peak activation",
        {"consumed_gib": 14.5, "weights_gib": None, "peak_activation_gib": 2.1, "gpu_memory_utilization": 0.9},
    ),
    "a hybrid's blocks": (
        "Setting attention block size to 784 tokens to ensure that attention page size is >= mamba page size.",
        {"block_size": 784},
    ),
    "fitted length": (
        "Auto-fit max_model_len: reduced from 131072 to 48352 to fit in available KV cache memory (1.71 GiB)",
        {"max_model_len": 48_352, "available_kv_gib": 1.71},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("line", "facts"), LINES.values(), ids=LINES)
def test_the_wordings_of_every_version_and_device(line, facts, one_start):
    startup = one_start(line)
    assert {key: getattr(startup, key) for key in facts} == facts


def test_a_tpu_prints_the_sum_over_its_chips(one_start):
    args = "INFO 06-01 00:00:00 [utils.py:1] non-default args: {'model': 'm', 'tensor_parallel_size': 8}\n"
    line = "Memory statistics | total_hbm_used_gb=374.57GiB | total_hbm_avail_gb=307.6GiB"
    assert one_start(args + line).available_kv_gib == pytest.approx(38.45)
    assert one_start("GPU KV cache size: 16 tokens\n" + line).available_kv_gib is None  # of how many chips is not known


def test_the_block_size_follows_from_blocks_and_concurrency(one_start):
    lines = (
        V0 + "# GPU blocks: 1000, # CPU blocks: 5\n" + V0 + "Maximum concurrency for 1000 tokens per request: 32.00x"
    )
    startup = one_start(lines)
    assert (startup.block_size, startup.kv_cache_tokens) == (32, 32_000)
    vague = (
        V0 + "# GPU blocks: 100, # CPU blocks: 5\n" + V0 + "Maximum concurrency for 131072 tokens per request: 0.01x"
    )
    assert (one_start(vague).block_size, one_start(vague).kv_cache_tokens) == (None, None)


FAILURES = {
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`": (
        "no-kv-memory", "no-kv-memory", "raise --gpu-memory-utilization",
    ),
    "Available KV cache memory: -0.52 GiB": ("no-kv-memory", "no-kv-memory", "lower --max-num-batched-tokens"),
    "ValueError: To serve at least one request with the models's max seq len (9000), (1.75 GB KV cache is needed": (
        "kv-smaller-than-max-model-len", "kv-smaller-than-max-model-len", "lower --max-model-len",
    ),
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests.": (
        "oom-sampler", "oom-sampler", "lower --max-num-seqs below 256",
    ),
    "INFO Starting to load model m\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB": (
        "oom-other", "oom-weights", "--tensor-parallel-size",
    ),
    "INFO Capturing CUDA graph shapes\ntorch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.96 GiB": (
        "oom-other", "oom-graphs", "--max-num-seqs",
    ),
    "ValueError: Free memory on device (20.1/23.6 GiB) on startup is less than desired GPU memory utilization (0.9": (
        "free-memory-below-utilization", "free-memory-below-utilization", "0.85",
    ),
    "OSError: [Errno 98] Address already in use": ("port-in-use", "port-in-use", "--port"),
    "Traceback (most recent call last):\nAssertionError: duplicate layer name": ("unknown", "unknown", "last lines"),
    "(EngineCore pid=7) ERROR 01-11 03:46:48 [core.py:936] EngineCore failed to start.": ("unknown", "unknown", "log"),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "expected"), FAILURES.items(), ids=[key[:40] for key in FAILURES])
def test_a_failed_start_is_named_with_what_to_change(lines, expected, args_line, one_start):
    startup = one_start(args_line(max_num_seqs=256) + lines)
    failure, code, remedy = expected
    assert (startup.failure, startup.failure_code) == (failure, code)
    assert remedy in startup.remedy


def test_a_server_that_serves_has_not_failed(one_start, pool_lines):
    warning = "Traceback (most recent call last):\nImportError: flash_attn is not installed\n"
    text = pool_lines("", 5000) + "INFO:     Application startup complete.\n" + warning
    assert (one_start(text).failure, one_start(text).is_ready) == (None, True)


def test_a_failure_far_behind_its_start_is_seen(one_start, pool_lines):
    noise = "".join(
        f"INFO 06-01 00:00:00 [x.py:1] loading shard {i} of a very large model, patience\n" for i in range(60_000)
    )
    text = (
        pool_lines("", 5000)
        + noise
        + "RuntimeError: CUDA out of memory occurred when warming up sampler with 9 dummy requests."
    )
    assert one_start(text).failure == "oom-sampler"


def test_figures_that_no_server_has_are_passed_over(one_start, pool_lines):
    text = (
        pool_lines("", 5000) + "total_gpu_memory (14.56GiB) x gpu_memory_utilization (1.50) = 7.28GiB\n"
        f"Available KV cache memory: {'9' * 400}.0 GiB\n"
    )
    startup = one_start(text)
    assert (startup.kv_cache_tokens, startup.device_gib) == (5000, 14.56)
    assert (startup.gpu_memory_utilization, startup.available_kv_gib) == (None, None)
