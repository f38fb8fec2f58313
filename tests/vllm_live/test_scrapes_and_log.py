"""A real vLLM on a CPU that preempts: its metrics, its log and its logged steps tell the same load."""

import numpy as np
import pytest

from maitre.metric_series import total_increase
from maitre.verify.observed import observed
from maitre.verify.sources.counter_order import contradictory_counters
from maitre.verify.sources.from_log import read_log
from maitre.vllm.metric_names import canonical_name

pytestmark = [pytest.mark.vllm, pytest.mark.prometheus]


def test_metrics_log_and_steps_tell_the_same_load(watched, loads):
    before, during, after = watched.before, watched.during, watched.after
    assert all(canonical_name(one.name) for one in during.series if one.name.startswith("vllm:"))
    assert contradictory_counters(during.series) == ()
    log = read_log([watched.log], "server.log")
    seen = observed(during.series)
    assert (seen.num_gpu_blocks, seen.block_size, seen.engines) == (loads.NUM_GPU_BLOCKS, loads.BLOCK_SIZE, 1)
    assert max(sample.stats.num_running for sample in log.samples) <= loads.MAX_NUM_SEQS
    assert max(sample.stats.num_waiting for sample in log.samples) >= loads.NUM_AT_ONCE - loads.MAX_NUM_SEQS
    steps = log.iterations
    assert steps.num_context_tokens.sum() == loads.NUM_AT_ONCE * loads.PROMPT_TOKENS
    decoded = steps.num_generation_tokens.sum() - steps.num_recomputed_tokens.sum()
    assert decoded <= loads.NUM_AT_ONCE * loads.OUTPUT_TOKENS
    assert observed(after.series).preemptions_total > 0
    assert steps.num_recomputed_tokens.sum() > 0
    assert total_increase([one for one in during.series if one.name == "vllm:generation_tokens_total"]) > 0
    assert observed(before.series).preemptions_total == 0
    assert np.isfinite(steps.time_s).all()
