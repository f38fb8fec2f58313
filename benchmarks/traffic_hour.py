"""What vLLM's metrics would have said of an hour of Azure's conversation traffic; the fixture of the Prometheus tests.

    python benchmarks/traffic_hour.py AzureLLMInferenceTrace_conv.csv > tests/prometheus_live/data/azure_hour.json

The lengths and arrivals are the trace's (Azure/AzurePublicDataset, CC-BY-4.0), the latencies are made up: 0.3 s and
30 ms a token, with at most 200 requests at once. Counters are written as increments of each 15 s.
"""

from __future__ import annotations

import heapq
import json
import sys

import numpy as np
from numpy.typing import NDArray

from maitre.records import Workload
from maitre.workload import load_workload

STEP_S = 15
SLOTS = 200
MAX_TOKENS = 1024
TOKEN_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
"""vLLM's with --max-model-len 16384."""
TTFT_BOUNDS = (0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
LATENCY_BOUNDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0)

FloatArray = NDArray[np.float64]


def serve(workload: Workload) -> tuple[FloatArray, FloatArray]:
    """When each request starts and ends, first come first served."""
    assert workload.arrival_s is not None
    lasts_s = 0.3 + 0.03 * workload.output_tokens
    free_s = [0.0] * SLOTS
    starts_s = np.empty(workload.num_requests)
    for row, arrival_s in enumerate(workload.arrival_s):
        starts_s[row] = max(arrival_s, heapq.heappop(free_s))
        heapq.heappush(free_s, starts_s[row] + lasts_s[row])
    return starts_s, starts_s + lasts_s


def increments(
    values: FloatArray, bounds: tuple[float, ...], step: NDArray[np.intp], num_steps: int
) -> dict[str, object]:
    """Observations of each step in each bucket alone, and their sums."""
    counts = np.zeros((num_steps, len(bounds) + 1), dtype=int)
    np.add.at(counts, (step, np.searchsorted(bounds, values)), 1)
    sums = np.bincount(step, weights=values, minlength=num_steps)
    return {"bounds": bounds, "counts": counts.tolist(), "sums": np.round(sums, 3).tolist()}


def main() -> None:
    """Print the fixture."""
    workload = load_workload(sys.argv[1])
    starts_s, ends_s = serve(workload)
    assert workload.arrival_s is not None
    num_steps = int(ends_s.max() // STEP_S) + 1
    step = (ends_s // STEP_S).astype(np.intp)
    looks_s = (np.arange(num_steps) + 1) * STEP_S
    started, ended, arrived = (
        np.searchsorted(np.sort(moments), looks_s) for moments in (starts_s, ends_s, workload.arrival_s)
    )
    first_s = np.minimum(starts_s + 0.3, ends_s) - workload.arrival_s
    fixture = {
        "source": "Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv.csv (2023), CC-BY-4.0; counted in buckets",
        "step_s": STEP_S,
        "max_tokens": MAX_TOKENS,
        "prompt_percentiles": np.percentile(workload.prompt_tokens, [50, 90, 95, 99], method="inverted_cdf").tolist(),
        "output_percentiles": np.percentile(workload.output_tokens, [50, 90, 95, 99], method="inverted_cdf").tolist(),
        "vllm:request_prompt_tokens": increments(workload.prompt_tokens, TOKEN_BOUNDS, step, num_steps),
        "vllm:request_generation_tokens": increments(workload.output_tokens, TOKEN_BOUNDS, step, num_steps),
        "vllm:time_to_first_token_seconds": increments(first_s, TTFT_BOUNDS, step, num_steps),
        "vllm:e2e_request_latency_seconds": increments(ends_s - workload.arrival_s, LATENCY_BOUNDS, step, num_steps),
        "vllm:num_requests_running": (started - ended).tolist(),
        "vllm:num_requests_waiting": (arrived - started).tolist(),
    }
    print(json.dumps(fixture, separators=(",", ":")))


if __name__ == "__main__":
    main()
