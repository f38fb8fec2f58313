"""What is lost when traffic is known from vLLM's histograms alone: rebuilt requests against those of public traces.

    python benchmarks/rebuilt_traffic.py FOLDER

FOLDER holds the traces of docs/prometheus.md. Lengths are counted in buckets, requests are drawn from the counts, and
both are simulated: Llama-3.1-8B on an H200, all requests at once, prefixes left out. `pairs` keeps the true lengths and
draws only which output goes with which prompt.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from maitre.calibration import calibration_for
from maitre.gpus import find_gpu
from maitre.metric_series import Histogram
from maitre.models import load_model
from maitre.records import Cell, ServerConfig, Workload
from maitre.setup import Setup
from maitre.trial.simulated import SimulatedEngine
from maitre.workload import load_workload
from maitre.workload.arrivals import every_nth
from maitre.workload.from_histograms import workload_from_histograms

TRACES = {
    "azure_AzureLLMInferenceTrace_conv.csv": (16_384, 4000),
    "azure_AzureLLMInferenceTrace_code.csv": (16_384, 4000),
    "mooncake_conversation_trace.jsonl": (131_072, 1000),
}
"""Each with a length of the model that holds its requests, and how many of them are taken, evenly."""
NUM_SEEDS = 5
CELLS = [
    Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens)
    for seqs, tokens in ((32, 2048), (128, 2048), (256, 8192), (1024, 8192))
]
PERCENTS = (50, 90, 95, 99)

FloatArray = NDArray[np.float64]


def one_two_five(max_model_len: int) -> list[float]:
    """VLLM's own bounds."""
    series = [step * 10.0**power for power in range(8) for step in (1, 2, 5)]
    return [bound for bound in series if bound <= max_model_len]


def geometric(max_model_len: int) -> list[float]:
    """Bounds 25 % apart."""
    return np.unique(np.round(1.25 ** np.arange(np.log(max_model_len) / np.log(1.25)))).tolist()


def counted(lengths: NDArray[np.int64], bounds: list[float]) -> Histogram:
    """What a server's histogram holds after these requests."""
    upper = np.array([*bounds, np.inf])
    counts = np.bincount(np.searchsorted(upper, lengths), minlength=upper.size).astype(float)
    return Histogram(upper, counts, float(lengths.sum()))


def speeds(workload: Workload, max_model_len: int) -> FloatArray:
    """Tokens/s of each cell."""
    model, gpu = load_model("llama-3.1-8b"), find_gpu("h200")
    server = ServerConfig(model=model.name, max_model_len=max_model_len, **CELLS[-1].model_dump())
    setup = Setup(server, model, gpu)
    calibration = calibration_for(model, gpu, server, setup.kv_budget(CELLS[0]).kv_bytes_per_token or 0)
    engine = SimulatedEngine(workload, server, calibration, lambda cell: setup.kv_budget(cell).num_gpu_blocks)
    return np.array([engine.run(cell).total_tokens_per_s for cell in CELLS])


def variants(true: Workload, max_model_len: int, seed: int) -> Iterator[tuple[str, Workload]]:
    """The same traffic, known less and less well."""
    output = np.random.default_rng(seed).permutation(true.output_tokens)
    fits = true.prompt_tokens + output <= max_model_len
    yield "pairs", true.model_copy(update={"output_tokens": np.where(fits, output, true.output_tokens)})
    for name, bounds in (("×1.25", geometric(max_model_len)), ("1-2-5", one_two_five(max_model_len))):
        prompt, replies = counted(true.prompt_tokens, bounds), counted(true.output_tokens, bounds)
        yield name, workload_from_histograms(prompt, replies, true.num_requests, seed, max_model_len)


def errors(path: Path) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """Relative errors of the percentiles (prompt, output) and of the throughput, of each variant and seed."""
    trace, (max_model_len, num_requests) = load_workload(str(path)), TRACES[path.name]
    true = every_nth(trace, max(1, trace.num_requests // num_requests))
    true = true.model_copy(update={"prefix_hashes": None, "prefix_block_tokens": None})
    truth = speeds(true, max_model_len)
    for seed in range(NUM_SEEDS):
        for variant, rebuilt in variants(true, max_model_len, seed):
            lengths = [
                np.percentile(getattr(rebuilt, side), PERCENTS) / np.percentile(getattr(true, side), PERCENTS) - 1
                for side in ("prompt_tokens", "output_tokens")
            ]
            yield variant, np.concatenate(lengths), speeds(rebuilt, max_model_len) / truth - 1


def main() -> None:
    """Print one row a trace and variant: means over the seeds, the throughput also at its worst."""
    print("trace | known | prompt P50 P90 P95 P99 | output P50 P90 P95 P99 |", *CELLS, "| worst")
    for name in TRACES:
        found: dict[str, list[tuple[FloatArray, FloatArray]]] = {}
        for variant, lengths, throughput in errors(Path(sys.argv[1]) / name):
            found.setdefault(variant, []).append((lengths, throughput))
        for variant, rows in found.items():
            lengths = np.mean([row[0] for row in rows], axis=0) * 100
            throughput = np.array([row[1] for row in rows]) * 100
            cells = " ".join(f"{value:+.1f}" for value in throughput.mean(axis=0))
            prompt, output = (" ".join(f"{value:+.0f}" for value in part) for part in np.split(lengths, 2))
            worst = throughput.flat[int(np.abs(throughput).argmax())]
            print(f"{name.partition('.')[0]} | {variant} | {prompt} | {output} | {cells} | {worst:+.1f} %")


if __name__ == "__main__":
    main()
