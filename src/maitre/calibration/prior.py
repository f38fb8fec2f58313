"""What a step should take when nobody has measured it: the roofline, times the efficiency measured elsewhere.

Roofline of one step on one GPU (reading each byte once at the peak bandwidth, each product at the peak rate; Williams,
Waterman, Patterson 2009), with tensor parallelism t:

    weights   bytes of all matrices that a token passes / t / bandwidth                s a step
    token     2 · matrix parameters / t / FLOP rate                                    s a token
    context   KV bytes of a token on this GPU / bandwidth                              s a context token
    pair      4 · layers · query heads · head size / t / FLOP rate                     s a query–key pair
"""

from __future__ import annotations

import numpy as np

from maitre.calibration.calibration import Calibration
from maitre.gpus import Gpu
from maitre.models import Model
from maitre.records import ServerConfig
from maitre.simulator.step_time import StepTime

WEIGHTS_EFFICIENCY = 1.2
CONTEXT_EFFICIENCY = 1.1
TOKEN_EFFICIENCY = 1.45
MIXED_CONTEXT_EFFICIENCY = 2.5
PAIR_EFFICIENCY = 2.0
"""Measured seconds over roofline seconds, Qwen2.5 7B, 14B and 32B in bfloat16 on an H200 with vLLM 0.26.0
(`benchmarks/step_time.py`). The pairs have little weight in those recordings; theirs is a guess."""

STEP_S = 0.65e-3
LAYER_S = 20e-6
"""Launches of a step with CUDA graphs, and of each of its layers (same recordings)."""

SEQUENCE_LAYER_S = 0.42e-6
"""A sequence in a layer's attention kernel, beside reading its context (same recordings)."""

HOST_DECODE_S = 2.5e-3
HOST_MIXED_S = 2e-3
HOST_MIXED_LAYER_S = 0.16e-3
"""What the host needs for a step whatever the GPU does: with full CUDA graphs, and without them for each layer, too.
It decides for small models, and differs from host to host (same recordings, and Qwen2.5 1.5B)."""

ALL_REDUCE_S = 20e-6
"""One all-reduce between GPUs of one host; assumed, not measured."""

COEFFICIENT_SD = np.array([0.10, 0.40, 0.15, 0.40, 0.10, 0.40, 0.40])
"""Relative spread of each coefficient on its own, in the order of `COEFFICIENTS`: how the three models differ."""

SAME_GPU_SD, OTHER_GPU_SD, TENSOR_PARALLEL_SD = 0.05, 0.20, 0.15
"""Relative spread that all coefficients share: on the GPU that was measured, on any other, and with tensor parallelism.
The first is measured; for the others the field's simulators report errors of 13 to 45 % (modelling notes)."""

CELL_SD = 0.04
"""Relative spread of a cell's time around the others, beyond the coefficients."""

MEASURED_GPU = "NVIDIA H200"


def roofline_prior(model: Model, gpu: Gpu, server: ServerConfig, kv_bytes_per_token: int) -> Calibration:
    """The step time of a model on a GPU, scaled from what was measured on an H200.

    Args:
        model: its geometry.
        gpu: its peak rates.
        server: data types and tensor parallelism.
        kv_bytes_per_token: on one GPU.
    """
    share = 1 / server.tensor_parallel_size
    bandwidth, flops = gpu.memory_bandwidth_bytes_per_s, gpu.half_flops_per_s
    bytes_per_parameter = model.weight_bytes / model.num_parameters
    weights_s = model.num_matmul_parameters * bytes_per_parameter * share / bandwidth
    token_s = 2 * model.num_matmul_parameters * share / flops
    context_s = kv_bytes_per_token / bandwidth
    pair_s = 4 * model.num_hidden_layers * model.query_size * share / flops
    launch_s = STEP_S + LAYER_S * model.num_hidden_layers
    if server.tensor_parallel_size > 1:
        launch_s += 2 * ALL_REDUCE_S * model.num_hidden_layers
    knee = flops / bandwidth * bytes_per_parameter / 2
    host_mixed_s = HOST_MIXED_S + HOST_MIXED_LAYER_S * model.num_hidden_layers
    step_time = StepTime(
        a0=max(WEIGHTS_EFFICIENCY * weights_s + launch_s, HOST_DECODE_S),
        b0=SEQUENCE_LAYER_S * model.num_hidden_layers,
        c0=CONTEXT_EFFICIENCY * context_s,
        a1=max(launch_s, host_mixed_s - TOKEN_EFFICIENCY * token_s * knee),
        b1=TOKEN_EFFICIENCY * token_s,
        c1=MIXED_CONTEXT_EFFICIENCY * context_s,
        d1=PAIR_EFFICIENCY * pair_s,
        knee=knee,
    )
    common_sd = SAME_GPU_SD if gpu.name == MEASURED_GPU else OTHER_GPU_SD
    if server.tensor_parallel_size > 1:
        common_sd = float(np.hypot(common_sd, TENSOR_PARALLEL_SD))
    covariance = np.diag(COEFFICIENT_SD**2) + common_sd**2
    return Calibration(
        kind="scaled",
        model=model.name,
        gpu=gpu.name,
        source="roofline, scaled by the efficiency of Qwen2.5 7B to 32B on an H200",
        step_time=step_time,
        covariance=tuple(map(tuple, covariance.tolist())),
        cell_sd=CELL_SD,
        time_sd=float(np.hypot(common_sd, 0.06)),
    )
