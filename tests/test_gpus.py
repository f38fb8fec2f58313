"""GPUs: the table's figures make sense, and every spelling finds its card."""

import pytest

from maitre.errors import UsageError
from maitre.gpus import find_gpu, known_gpus
from maitre.units import GIB, MIB


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h200", "NVIDIA H200"),
        ("NVIDIA H200", "NVIDIA H200"),
        ("nvidia-h100-80gb-hbm3", "NVIDIA H100 80GB HBM3"),
        ("H100", "NVIDIA H100 80GB HBM3"),
        ("h100 pcie", "NVIDIA H100 PCIe"),
        ("A100-80GB", "NVIDIA A100-SXM4-80GB"),
        ("a100 80gb", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 80GB PCIe"),
        ("rtx_4090", "NVIDIA GeForce RTX 4090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("Tesla T4", "Tesla T4"),
        ("amd instinct mi300x", "AMD Instinct MI300X"),
    ],
)
def test_spellings(spelling, name):
    assert find_gpu(spelling).name == name


def test_a_typo_gets_the_nearest_names():
    with pytest.raises(UsageError, match="H20O") as caught:
        find_gpu("H20O")
    assert "H200" in caught.value.hint


def test_a_card_of_several_sizes_asks_which():
    with pytest.raises(UsageError, match="several sizes") as caught:
        find_gpu("A100")
    assert "A100-40GB" in caught.value.hint
    assert "A100-80GB" in caught.value.hint


@pytest.mark.parametrize("name", ["", " ", "GPU", "RTX", "Xeon"])
def test_no_card_at_all(name):
    with pytest.raises(UsageError):
        find_gpu(name)


def test_measured_memory_of_the_h200():
    gpu = find_gpu("H200")
    assert gpu.driver_memory_bytes == 143_771 * MIB
    assert gpu.memory_bytes / GIB == pytest.approx(139.80, abs=0.005)


@pytest.mark.parametrize("gpu", known_gpus(), ids=lambda gpu: gpu.name)
def test_figures_are_plausible(gpu):
    assert 0.93 < gpu.memory_bytes / gpu.driver_memory_bytes <= 1.0001
    assert 1e11 < gpu.memory_bandwidth_bytes_per_s < 1e13
    ridge = gpu.half_flops_per_s / gpu.memory_bandwidth_bytes_per_s
    assert 50 < ridge < 500  # flops a byte
    if gpu.fp8_flops_per_s is not None:
        assert gpu.fp8_flops_per_s / gpu.half_flops_per_s == pytest.approx(2, rel=0.02)
    assert gpu.source


def test_every_name_and_alias_finds_its_own_card():
    for gpu in known_gpus():
        for spelling in (gpu.name, *gpu.aliases):
            assert find_gpu(spelling) == gpu
