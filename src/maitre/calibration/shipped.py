"""The calibrations that ship with the package, and which one answers for a server."""

from __future__ import annotations

from functools import cache
from importlib import resources

from maitre.calibration.calibration import Calibration
from maitre.calibration.prior import roofline_prior
from maitre.gpus import Gpu
from maitre.models import Model, load_model
from maitre.records import ServerConfig


def calibration_for(model: Model, gpu: Gpu, server: ServerConfig, kv_bytes_per_token: int) -> Calibration:
    """The shipped calibration of this model on this GPU, or else the scaled roofline.

    Args:
        model: its geometry; a fine-tune with the geometry of a measured model counts as that model.
        gpu: the card.
        server: a measured calibration holds for one GPU with weights and KV cache of 16 bits.
        kv_bytes_per_token: on one GPU.
    """
    is_plain = server.tensor_parallel_size == 1 and model.dtype_bytes == 2 and server.kv_cache_dtype == "auto"
    if is_plain and model.quantization is None:
        for calibration in shipped_calibrations():
            if calibration.gpu == gpu.name and _same_geometry(load_model(calibration.model), model):
                return calibration
    return roofline_prior(model, gpu, server, kv_bytes_per_token)


@cache
def shipped_calibrations() -> tuple[Calibration, ...]:
    """All that ship, from `data/calibrations/*.json`."""
    folder = resources.files("maitre").joinpath("data/calibrations")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    return tuple(Calibration.model_validate_json(file.read_text("utf-8")) for file in files)


def _same_geometry(one: Model, other: Model) -> bool:
    def facts(model: Model) -> tuple[int, ...]:
        return (
            model.hidden_size,
            model.num_hidden_layers,
            model.num_attention_heads,
            model.num_key_value_heads,
            model.head_dim,
            model.intermediate_size,
            model.vocab_size,
        )

    return facts(one) == facts(other)
