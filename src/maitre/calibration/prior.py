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

LAYER_LAUNCH_S = 15e-6
SEQUENCE_S = 2.5e-5
ALL_REDUCE_S = 20e-6


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
    launch_s = LAYER_LAUNCH_S * model.num_hidden_layers
    if server.tensor_parallel_size > 1:
        launch_s += 2 * ALL_REDUCE_S * model.num_hidden_layers
    step_time = StepTime(
        a0=1.25 * weights_s + launch_s,
        b0=SEQUENCE_S,
        c0=1.1 * context_s,
        a1=launch_s,
        b1=1.48 * token_s,
        c1=2.0 * context_s,
        d1=2.0 * pair_s,
        knee=flops / bandwidth * bytes_per_parameter / 2,
    )
    spread = np.array([0.3, 0.5, 0.3, 0.8, 0.3, 0.5, 0.5])
    return Calibration(
        kind="scaled",
        model=model.name,
        gpu=gpu.name,
        source="roofline scaled by the efficiency measured with Qwen2.5 on an H200",
        step_time=step_time,
        covariance=tuple(map(tuple, np.diag(np.log1p(spread**2)).tolist())),
        cell_sd=0.15,
    )
