"""A real vLLM, scraped by a real Prometheus: what it counted is what the window says."""

import numpy as np
import pytest

from maitre.metric_series import histogram, total_increase
from maitre.prometheus.client import PrometheusClient
from maitre.verify.sources.from_prometheus import read_window

pytestmark = [pytest.mark.prometheus, pytest.mark.vllm]


def test_a_window_holds_what_the_server_did(watched, loads):
    found = read_window(PrometheusClient(watched.prometheus.url), *watched.single_s)
    prompts, outputs = np.array(loads.SINGLE).T

    def gain(name):
        return total_increase([one for one in found if one.name == name])

    assert gain("vllm:request_success_total") == len(loads.SINGLE)
    assert gain("vllm:prompt_tokens_total") == prompts.sum()
    assert gain("vllm:generation_tokens_total") == outputs.sum()
    assert gain("vllm:num_preemptions_total") == 0
    counted = histogram(found, "vllm:request_prompt_tokens")
    assert (counted.count, counted.mean) == (len(loads.SINGLE), pytest.approx(prompts.mean()))
    gaps = histogram(found, "vllm:inter_token_latency_seconds")
    assert gaps.count == (outputs - 1).sum()
    assert {one.engine for one in found if one.name == "vllm:num_requests_running"} == {(watched.target, "0")}
    (cache,) = [one for one in found if one.name == "vllm:cache_config_info"]
    assert int(cache.labels["num_gpu_blocks"]) == loads.NUM_GPU_BLOCKS
    assert {one.labels["model_name"] for one in found if one is not cache} == {"tiny"}
