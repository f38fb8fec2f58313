"""Models: their geometry, parameters and weights, from a config.json or the shipped table."""

from maitre.models.config import LOG_HINT, parse_attention_config, parse_model_config
from maitre.models.geometry import DTYPE_BYTES, AttentionGeometry, Dtype, Model
from maitre.models.sources import known_models, load_attention, load_model

__all__ = [
    "DTYPE_BYTES",
    "LOG_HINT",
    "AttentionGeometry",
    "Dtype",
    "Model",
    "known_models",
    "load_attention",
    "load_model",
    "parse_attention_config",
    "parse_model_config",
]
