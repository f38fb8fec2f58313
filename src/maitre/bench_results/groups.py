"""Which rows may be compared with each other: same model, same GPUs, same requests, same client load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from maitre.bench_results.doubt import Doubt
from maitre.bench_results.names import is_known_setting
from maitre.bench_results.records import Run, Setting

MEMORY_SETTINGS = (
    *("tensor_parallel_size", "pipeline_parallel_size", "num_gpus", "gpu", "gpu_memory_utilization", "kv_cache_dtype"),
    *("max_model_len", "quantization", "dtype"),
)
"""Settings that change how much KV cache there is beside the weights."""
_CONTEXT = (*MEMORY_SETTINGS, "data_parallel_size", "model", "dataset", "input_len", "output_len", "vllm_version")
LOAD = ("concurrency", "request_rate")
_SAME_LENGTH_REL = 0.05


def split_rows(rows: Sequence[Run], numbers: Sequence[int], names: Sequence[str]) -> dict[str, list[int]]:
    """Split rows by the settings or loads that differ, where every part still compares at least two settings.

    Returns:
        Row numbers by `name=value`; one group named "" when nothing splits.
    """
    groups: dict[str, list[int]] = {"": list(numbers)}
    for name in names:
        finer: dict[str, list[int]] = defaultdict(list)
        for above, members in groups.items():
            for row in members:
                part = f"{name}={_value(rows[row], name)}"
                finer[f"{above}, {part}" if above else part].append(row)
        if len(finer) > len(groups) and all(len(dials_of(rows, members)) > 1 for members in finer.values()):
            groups = dict(finer)
    return groups


def context_of(rows: Sequence[Run]) -> tuple[str, ...]:
    """Settings that make rows incomparable: model, GPUs, requests, and what a table's own columns name."""
    own = sorted({name for run in rows for name in run.settings if not is_known_setting(name)})
    return (*_CONTEXT, *own)


def dials_of(rows: Sequence[Run], numbers: Sequence[int]) -> set[tuple[object, ...]]:
    """The different settings of the two dials among some rows."""
    return {(rows[row].max_num_seqs, rows[row].max_num_batched_tokens) for row in numbers}


def check_same_requests(rows: Sequence[Run], numbers: Sequence[int]) -> Iterator[Doubt]:
    """Rows of one group that ran different models or requests."""
    models = {rows[row].settings.get("model") for row in numbers} - {None}
    if len(models) > 1:
        yield Doubt(
            "different-models",
            f"the rows ran different models: {', '.join(sorted(map(str, models)))}",
            "import the files of one model at a time",
            fatal=True,
        )
    for name, totals in (("prompt", "total_input_tokens"), ("output", "total_output_tokens")):
        lengths = {row: length for row in numbers if (length := _mean_length(rows[row], totals)) is not None}
        if lengths and max(lengths.values()) > (1 + 2 * _SAME_LENGTH_REL) * min(lengths.values()):
            yield Doubt(
                "different-requests",
                f"the rows did not run the same requests: {min(lengths.values()):,.0f} to {max(lengths.values()):,.0f} "
                f"{name} tokens each",
                "compare runs of one dataset, with --ignore-eos so that outputs have one length",
                fatal=True,
            )


def check_one_cause(rows: Sequence[Run], numbers: Sequence[int]) -> Iterator[Doubt]:
    """Settings other than the two dials that differ between rows: their share in a gain cannot be told apart."""
    names = sorted({name for row in numbers for name in rows[row].settings})
    for name in names:
        values: dict[Setting | None, list[int]] = defaultdict(list)
        for row in numbers:
            values[rows[row].settings.get(name)].append(row)
        if len(values) > 1:
            shown = "; ".join(f"{'not set' if v is None else v} in rows {_join(r)}" for v, r in values.items())
            yield Doubt(
                "two-causes",
                f"{name} differs beside the dials: {shown}",
                "measure rows that differ in one thing only before crediting a limit",
            )


def _mean_length(run: Run, totals: str) -> float | None:
    total = getattr(run, totals)
    return total / run.successful if total and run.successful else None


def _value(run: Run, name: str) -> object:
    value = getattr(run, name) if name in LOAD else run.settings.get(name)
    return "unknown" if value is None else value


def _join(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows))
