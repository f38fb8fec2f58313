"""Physical limits: checked against hand-made sums, and never below what the simulator reaches."""

import numpy as np
import pytest

from maitre.gpus import find_gpu
from maitre.limits import physical_limits
from maitre.models import load_model
from maitre.records import KvBudget, Workload

MODEL, GPU = load_model("qwen2.5-14b"), find_gpu("h200")
BUDGET = KvBudget(kv_bytes_per_token=196_608, num_gpu_blocks=4521, block_size=16, source="by hand")


def fixed(prompt, output, n=10):
    return Workload(name="w", source="s", prompt_tokens=np.full(n, prompt), output_tokens=np.full(n, output))


def limits(workload, slots=64, gpus=1, budget=BUDGET):
    return physical_limits(workload, MODEL, GPU, budget, slots, gpus)


def test_the_compute_bound_is_flops_over_flop_rate():
    found = limits(fixed(512, 256))
    pairs = 512**2 / 2 + 512 * 256 + 256**2 / 2
    flops = 2 * MODEL.num_matmul_parameters * 768 + 4 * 48 * 40 * 128 * pairs
    assert found.compute_tokens_per_s == pytest.approx(768 / (flops / GPU.half_flops_per_s))


def test_one_after_another_adds_the_time_of_the_bytes():
    found = limits(fixed(512, 256), slots=64)
    weights = MODEL.weight_bytes * MODEL.num_matmul_parameters / MODEL.num_parameters
    moved = 256 * weights / 64 + 196_608 * (512 * 256 + 256**2 / 2)
    seconds = 768 / found.compute_tokens_per_s + moved / GPU.memory_bandwidth_bytes_per_s
    assert found.sequential_tokens_per_s == pytest.approx(768 / seconds)


def test_the_bounds_are_ordered():
    for workload in (fixed(1, 1), fixed(512, 256), fixed(8000, 10), fixed(10, 8000)):
        found = limits(workload)
        assert found.sequential_tokens_per_s < found.overlap_tokens_per_s <= found.compute_tokens_per_s


def test_more_slots_share_the_weights_until_the_pool_is_full():
    by_slots = [limits(fixed(512, 256), slots=slots).sequential_tokens_per_s for slots in (8, 64, 112, 113, 500)]
    assert by_slots[0] < by_slots[1] < by_slots[2]
    assert by_slots[3] == by_slots[4]  # 72,320 tokens hold 113 sequences of 640 tokens on average


def test_twice_the_gpus_do_twice_the_arithmetic():
    one, two = limits(fixed(512, 256)), limits(fixed(512, 256), gpus=2)
    assert two.compute_tokens_per_s == pytest.approx(2 * one.compute_tokens_per_s)
