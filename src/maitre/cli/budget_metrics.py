"""`maitre budget --metrics`: the pool of a server that is up, from its own /metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitre.cli.budget_logged import Asked
    from maitre.vllm.metrics_text import CacheMetrics
    from maitre.vllm.startup_log_record import Startup


def show_metrics(place: str, api_key: str | None, asked: Asked) -> int:
    """Read a scrape; exit code 1 when it does not show the pool."""
    from json import dumps

    from maitre.cli import budget_logged as logged
    from maitre.cli.budget_fit import fit_lines
    from maitre.cli.budget_print import print_lines, print_metrics
    from maitre.cli.budget_sources import scraped_text, source_name
    from maitre.errors import InputError
    from maitre.vllm.metrics_text import parse_metrics_text, read_cache_metrics

    name = source_name(place)
    samples = parse_metrics_text(scraped_text(place, api_key))
    if not samples:
        raise InputError(f"{name}: no vLLM metrics", "give what http://host:port/metrics of the vLLM server answers")
    found = read_cache_metrics(samples)
    server = _as_startup(found)
    computed, remark = logged.computed_beside(server, asked)
    fit = logged.count_logged(server, asked)
    if asked.as_json:
        record = {"source": name, **found.model_dump(mode="json"), "parts": []}
        record |= logged.layout_record(server, asked.options)
        print(dumps(record | fit | logged.computed_record(computed, remark), indent=2, ensure_ascii=False))
    else:
        print_metrics(found, name)
        print_lines(fit_lines(None, fit, asked.lengths))
        logged.print_computed(computed, remark)
    return 0 if found.kv_tokens is not None else 1


def _as_startup(found: CacheMetrics) -> Startup:
    """What a start-up log would say of the same server."""
    from maitre.vllm.startup_log_record import Startup

    first = found.by_engine[0] if found.by_engine else None
    dtype = first.cache_dtype if first else None
    return Startup(
        kv_cache_tokens=found.kv_tokens,
        num_gpu_blocks=found.num_gpu_blocks,
        block_size=found.block_size,
        engines=len(found.by_engine) or None,
        gpu_memory_utilization=first.gpu_memory_utilization if first else None,
        kv_cache_dtype=None if dtype == "auto" else dtype,
        num_gpu_blocks_override=first.num_gpu_blocks_override if first else None,
        is_ready=True,
    )
