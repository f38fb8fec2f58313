"""What is known of the step time of a server that is up, before anything is measured on it."""

from __future__ import annotations

from typing import Any

import numpy as np

from maitre.calibration.calibration import Calibration
from maitre.calibration.prior import roofline_prior
from maitre.calibration.shipped import calibration_for
from maitre.errors import InputError, UnsupportedError, UsageError
from maitre.gpus import Gpu, find_gpu
from maitre.kv_budget import kv_bytes_per_token
from maitre.models import Model, load_model, parse_model_config
from maitre.records import ServerConfig

UNKNOWN_COMMON_SD, UNKNOWN_SD = 3.0, 1.5
"""Spread of the logarithms of a step time that nothing is known of, shared and each on its own: a tiny model on a CPU
and a large one on a GPU differ by a factor of 20 either way."""


def served_prior(model_config: dict[str, Any], gpu_name: str, server: ServerConfig) -> Calibration:
    """The shipped calibration or the scaled roofline, if model and GPU are known; else one that leaves all open.

    Args:
        model_config: the model's config.json, as the server has it.
        gpu_name: as the driver names it.
        server: its data types and tensor parallelism.
    """
    known = served_model(model_config, gpu_name, server)
    if known is None:
        return unknown_prior(server, gpu_name)
    model, gpu = known
    per_token = kv_bytes_per_token(model, server.kv_cache_dtype, server.tensor_parallel_size, server.dtype)
    return calibration_for(model, gpu, server, per_token)


def served_model(model_config: dict[str, Any], gpu_name: str, server: ServerConfig) -> tuple[Model, Gpu] | None:
    """The model and the GPU of a server that is up; None if one of them is not known. Arguments as above."""
    try:
        gpu = find_gpu(gpu_name)
        model = parse_model_config(model_config, "the server's model").model_copy(update={"name": server.model})
        kv_bytes_per_token(model, server.kv_cache_dtype, server.tensor_parallel_size, server.dtype)
    except (UsageError, InputError, UnsupportedError):
        return None
    return model, gpu


def unknown_prior(server: ServerConfig, gpu_name: str) -> Calibration:
    """A step time of the right form and of hardly any size."""
    model, gpu = load_model("qwen2.5-7b"), find_gpu("H200")
    anything = roofline_prior(model, gpu, server, kv_bytes_per_token(model, "auto", 1, "auto"))
    spread = np.eye(7) * UNKNOWN_SD**2 + UNKNOWN_COMMON_SD**2
    return anything.model_copy(
        update={
            "kind": "unknown",
            "model": server.model,
            "gpu": gpu_name,
            "source": "the runs themselves",
            "covariance": tuple(map(tuple, spread.tolist())),
            "time_sd": UNKNOWN_COMMON_SD,
        }
    )
