"""What is known of a server's setting: of several accounts the earlier one counts."""

import numpy as np

from maitre.metric_series import MetricSeries
from maitre.verify.deployment import Deployment, first_known, from_command, from_series, from_startup
from maitre.vllm.startup_log import read_startups


def info(**labels):
    return MetricSeries("vllm:cache_config_info", labels, np.array([0.0]), np.array([1.0]))


def test_the_command_tells_the_limits():
    known = from_command("vllm serve m --max-num-seqs 64 --max-num-batched-tokens=8k --enable-lora --max-loras 4")
    assert (known.max_num_seqs, known.max_num_batched_tokens) == (64, 8000)
    assert (known.enable_lora, known.max_loras, known.model) == (True, 4, "m")


def test_newer_limits_below_the_older_ones_count():
    known = from_command("vllm serve m --max-num-seqs 256 --max-num-active-seqs 64 --max-num-scheduled-tokens 2048")
    assert (known.seqs_limit, known.tokens_limit) == (64, 2048)


def test_what_is_told_first_counts():
    told = [Deployment(max_num_seqs=8), Deployment(max_num_seqs=256, max_num_batched_tokens=8192)]
    assert first_known(told) == Deployment(max_num_seqs=8, max_num_batched_tokens=8192)


def test_pools_of_engines_are_added_up():
    pools = [
        info(engine=engine, num_gpu_blocks=blocks, block_size="16") for engine, blocks in (("0", "100"), ("1", "50"))
    ]
    known = from_series(pools)
    assert (known.num_gpu_blocks, known.block_size, known.kv_tokens) == (150, 16, 2400)


def test_the_tokens_label_wins_over_blocks_that_groups_share():
    assert (
        from_series([info(num_gpu_blocks="24978", block_size="16", kv_cache_size_tokens="218464")]).kv_tokens == 218464
    )


def test_none_in_a_label_is_not_known():
    known = from_series([info(num_gpu_blocks="None", block_size="16", gpu_memory_utilization="None")])
    assert (known.num_gpu_blocks, known.kv_tokens, known.gpu_memory_utilization) == (None, None, None)


def test_a_log_tells_limits_and_pool():
    lines = (
        b"INFO 01-02 03:04:05 [utils.py:1] non-default args: {'max_num_seqs': 64, 'max_num_batched_tokens': 4096}\n"
        b"INFO 01-02 03:04:06 [kv_cache_utils.py:1] GPU KV cache size: 120,000 tokens\n"
    )
    known = from_startup(read_startups([lines], "log")[0])
    assert (known.max_num_seqs, known.max_num_batched_tokens, known.kv_tokens) == (64, 4096, 120_000)


def test_a_limit_or_a_pool_of_nothing_is_not_known():
    lines = b"# GPU blocks: 0, # CPU blocks: 0\nGPU KV cache size: 0 tokens\nargs: {'max_num_seqs': 0}\n"
    assert from_startup(read_startups([lines], "log")[0]) == Deployment()
