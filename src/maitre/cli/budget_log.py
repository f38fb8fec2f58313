"""`maitre budget --log`: the pool, the flags in force and the failure, from a start-up log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitre.cli.budget_logged import Asked
    from maitre.records import MemoryPart
    from maitre.vllm.startup_log_record import Startup


def show_log(path: str, asked: Asked) -> int:
    """Read a log; of several starts the last one counts. Exit code 1: it failed, or does not show the pool."""
    from json import dumps

    from maitre.cli.budget_fit import fit_lines
    from maitre.cli.budget_logged import computed_beside, computed_record, count_logged, print_computed
    from maitre.cli.budget_print import print_lines
    from maitre.cli.budget_sources import chunks_of, source_name
    from maitre.vllm.startup_log import read_startups

    name = source_name(path)
    startups = read_startups(chunks_of(path), name)
    last = startups[-1]
    computed, remark = computed_beside(last, asked)
    fit = count_logged(last, asked)
    if asked.as_json:
        record = _record(startups, name, asked) | fit | computed_record(computed, remark)
        print(dumps(record, indent=2, ensure_ascii=False))
    else:
        _print_startups(startups, name)
        if asked.lengths is not None:
            print_lines(fit_lines(None, fit, asked.lengths))
        print_computed(computed, remark)
    return 0 if last.failure is None and last.has_pool else 1


def _record(startups: Sequence[Startup], name: str, asked: Asked) -> dict[str, Any]:
    """The keys of every budget, and what the log says of the last start."""
    from maitre.cli.budget_logged import layout_record

    last = startups[-1]
    record: dict[str, Any] = {
        "source": name,
        "kv_tokens": last.kv_cache_tokens,
        **layout_record(last, asked.options),
        "parts": [part.model_dump() for part in _logged_parts(last)],
        **last.model_dump(mode="json"),
    }
    if len(startups) > 1:
        record["startups"] = [startup.model_dump(mode="json") for startup in startups]
    return record


def _logged_parts(startup: Startup) -> list[MemoryPart]:
    from maitre.records import MemoryPart
    from maitre.units import GIB

    named = {
        "weights": startup.weights_gib if startup.consumed_gib is None else None,
        "weights and outside PyTorch": startup.consumed_gib,
        "activation peak": startup.peak_activation_gib,
        "outside PyTorch": startup.non_torch_gib,
        "CUDA graphs": startup.cuda_graph_gib,
        "KV pool": startup.available_kv_gib,
    }
    found = {name: value for name, value in named.items() if value is not None}
    return [MemoryPart(name=name, num_bytes=round(gib * GIB), source="logged") for name, gib in found.items()]


def _print_startups(startups: Sequence[Startup], name: str) -> None:
    from rich.markup import escape

    from maitre.cli.budget_print import print_lines, startup_lines

    for number, startup in enumerate(startups, start=1):
        which = f", start {number} of {len(startups)}" if len(startups) > 1 else ""
        place = f", {startup.place}" if startup.place else ""
        version = f": vLLM {startup.version}" if startup.version else ""
        print_lines([escape(f"{name}{which}{place}{version}"), *startup_lines(startup)])
