"""Models: what their layers keep, their parameters and weights, from a config.json or the shipped table."""

from maitre.models.attention_layers import LOG_HINT
from maitre.models.config import parse_attention_config
from maitre.models.families import known_families
from maitre.models.geometry import DTYPE_BYTES, AttentionGeometry, Checkpoint, Dtype, Model
from maitre.models.layers import AttentionLayers, CacheKind, StateLayers
from maitre.models.sources import known_caches, known_models, load_attention, load_checkpoint, load_model
from maitre.models.weights_config import parse_checkpoint, parse_model_config

__all__ = [
    "DTYPE_BYTES",
    "LOG_HINT",
    "AttentionGeometry",
    "AttentionLayers",
    "CacheKind",
    "Checkpoint",
    "Dtype",
    "Model",
    "StateLayers",
    "known_caches",
    "known_families",
    "known_models",
    "load_attention",
    "load_checkpoint",
    "load_model",
    "parse_attention_config",
    "parse_checkpoint",
    "parse_model_config",
]
