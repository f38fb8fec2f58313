"""vLLM's families in a scrape of `/metrics`, and what they say of the KV cache.

Read are the text format, OpenMetrics, what relabelling and collectors make of it (other spellings, other labels), and
the JSON that Prometheus' HTTP API answers. Families and labels: vLLM 0.4.2 to 0.33.0, `v1/metrics/loggers.py` and
`config/cache.py`; `cache_config_info` since 0.5.5, its label kv_cache_size_tokens since 0.24.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from maitre.files import load_json
from maitre.metric_series import PLACES
from maitre.records import Record
from maitre.vllm.exposition import parse_sample
from maitre.vllm.metric_names import canonical_name

CACHE_CONFIG = "vllm:cache_config_info"

_OURS = re.compile(r"vllm", re.IGNORECASE)
_UNLISTED = re.compile(r"vllm[:_](?P<rest>\w[\w:]*)", re.ASCII)
_MAX_NAME = 256
"""Characters at a line's start in which the name stands."""


class MetricSample(NamedTuple):
    """One sample of one family."""

    name: str
    """As vLLM itself writes it, with a colon."""
    labels: Mapping[str, str]
    value: float
    time_s: float | None = None
    """Since the epoch, where it was exposed with the sample."""


class CacheConfig(Record):
    """The KV cache of one engine, by the labels of `cache_config_info`. None: not exposed."""

    engine: str
    """The label; empty where there is none, as before 0.8.5."""
    place: str = ""
    """The scraped server, where several are."""
    num_gpu_blocks: int | None
    """The null block included."""
    num_cpu_blocks: int | None = None
    block_size: int | None
    kv_tokens: int | None
    """kv_cache_size_tokens where it is exposed, else blocks times their size. Layer groups of a hybrid model share
    blocks, so that product would be too large for it."""
    max_concurrency: float | None = None
    """Requests of max_model_len that the pool holds at once (0.24 and later)."""
    gpu_memory_utilization: float | None = None
    cache_dtype: str | None = None
    num_gpu_blocks_override: int | None = None


class CacheMetrics(Record):
    """The KV cache of a deployment: blocks and tokens are added up over its engines."""

    num_gpu_blocks: int | None
    num_cpu_blocks: int | None
    block_size: int | None
    """None where engines differ."""
    kv_tokens: int | None
    engines: int
    """Engines that any vLLM family speaks of."""
    by_engine: tuple[CacheConfig, ...]


def parse_metrics_text(text: str, prefixes: Sequence[str] = ()) -> list[MetricSample]:
    """The samples of vLLM in a scrape, in order; a line that cannot be read is passed over.

    Args:
        text: the answer of `/metrics`, or of Prometheus' `/api/v1/query`.
        prefixes: further beginnings that stand for `vllm:`.
    """
    if text.lstrip()[:1] == "{" and (answered := [*_api_samples(text, tuple(prefixes))]):
        return answered
    return [*_text_samples(text, tuple(prefixes))]


def read_cache_metrics(samples: list[MetricSample]) -> CacheMetrics:
    """The KV cache, by `cache_config_info`; of an engine that is there twice the last counts."""
    speaking = {_engine(sample.labels) for sample in samples}
    configs = {_engine(sample.labels): sample.labels for sample in samples if sample.name == CACHE_CONFIG}
    found = tuple(_config(*key, labels) for key, labels in configs.items())
    sizes = {config.block_size for config in found}
    return CacheMetrics(
        num_gpu_blocks=_sum([config.num_gpu_blocks for config in found]),
        num_cpu_blocks=_sum([config.num_cpu_blocks for config in found]),
        block_size=sizes.pop() if len(sizes) == 1 else None,
        kv_tokens=_sum([config.kv_tokens for config in found]),
        engines=len({key for key in speaking if key[1]} or speaking),
        by_engine=found,
    )


def _text_samples(text: str, prefixes: tuple[str, ...]) -> Iterator[MetricSample]:
    """The samples of a text; of a family in two spellings, as Ray shows each counter, the first one counts."""
    found: list[tuple[str, MetricSample]] = []
    spellings: dict[str, str] = {}
    mixed: set[str] = set()
    for line in text.split("\n"):
        if not (prefixes or _OURS.search(line, 0, _MAX_NAME)) or (sample := parse_sample(line)) is None:
            continue
        if (name := own_name(sample.name, prefixes)) is not None:
            found.append((sample.name, MetricSample(name, sample.labels, sample.value, sample.time_s)))
            if spellings.setdefault(name, sample.name) != sample.name:
                mixed.add(name)
    first: dict[tuple[str, frozenset[tuple[str, str]]], str] = {}
    for written, one in found:
        key = (one.name, frozenset(one.labels.items())) if one.name in mixed else None
        if key is None or first.setdefault(key, written) == written:
            yield one


def _api_samples(text: str, prefixes: tuple[str, ...]) -> Iterator[MetricSample]:
    """The series of an instant query, or the last values of a range query."""
    try:
        answer = load_json(text)
        rows = answer["data"]["result"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    for row in rows if isinstance(rows, list) else []:
        labels = row.get("metric") if isinstance(row, dict) else None
        name = own_name(str(labels.get("__name__", "")), prefixes) if isinstance(labels, dict) else None
        if labels is None or name is None:
            continue
        values = row.get("values")
        last = values[-1] if isinstance(values, list) and values else row.get("value")
        own = {str(key): str(value) for key, value in labels.items() if key != "__name__"}
        yield MetricSample(name, own, *_value_and_time(last))


def _value_and_time(pair: Any) -> tuple[float, float | None]:
    try:
        return float(pair[1]), float(pair[0])
    except (TypeError, ValueError, IndexError, KeyError):
        return math.nan, None


def own_name(written: str, prefixes: tuple[str, ...] = ()) -> str | None:
    """What vLLM calls a sample; a `vllm:` name that is in no table, as of a newer version, keeps its own."""
    name = canonical_name(written, prefixes)
    if name is None and (unlisted := _UNLISTED.fullmatch(written)):
        return f"vllm:{unlisted['rest']}"
    return name


def _engine(labels: Mapping[str, str]) -> tuple[str, str]:
    """Which engine a sample is of: the scraped server and the label."""
    place = next((labels[key] for key in PLACES if labels.get(key)), "")
    return place, labels.get("engine", labels.get("engine_id", ""))


def _config(place: str, engine: str, labels: Mapping[str, str]) -> CacheConfig:
    blocks, size = _count(labels, "num_gpu_blocks"), _count(labels, "block_size")
    tokens = _count(labels, "kv_cache_size_tokens")
    if tokens is None and blocks is not None and size is not None:
        tokens = blocks * size
    dtype = labels.get("cache_dtype")
    return CacheConfig(
        engine=engine, place=place, num_gpu_blocks=blocks, num_cpu_blocks=_count(labels, "num_cpu_blocks"),
        block_size=size, kv_tokens=tokens, max_concurrency=_number(labels, "kv_cache_max_concurrency"),
        gpu_memory_utilization=_number(labels, "gpu_memory_utilization"),
        cache_dtype=None if dtype in {"None", ""} else dtype,
        num_gpu_blocks_override=_count(labels, "num_gpu_blocks_override"),
    )  # fmt: skip


def _sum(values: list[int | None]) -> int | None:
    """The sum, unknown where one of them is."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _count(labels: Mapping[str, str], key: str) -> int | None:
    text = labels.get(key, "")
    return int(text) if text.isdecimal() and len(text) < 16 else None


def _number(labels: Mapping[str, str], key: str) -> float | None:
    try:
        value = float(labels.get(key, ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
