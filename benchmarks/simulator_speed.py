"""How fast the simulator is: wall time on one core, best of three.

    python benchmarks/simulator_speed.py [MOONCAKE_TRACE.jsonl]

The grid: 5 × 5 cells (32 … 512 slots, 4,096 … 65,536 tokens) × 1,000 lognormal requests, all at once, Qwen2.5-14B on an
H200, prefix caching on as in vLLM, from the request list to the recommendation. The trace, if given: 12,031 requests of
Mooncake's conversation trace, open loop at its own times, prefix caching by its block hashes. Mooncake: FAST'25, the
repository kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from maitre.calibration import shipped_calibrations
from maitre.gpus import find_gpu
from maitre.models import load_model
from maitre.records import Cell, ServerConfig
from maitre.search import classical_grid
from maitre.simulator import SchedulerRules, replay_arrivals
from maitre.tune import Setup, tune_simulated
from maitre.workload import load_workload


def best_of_three(run: Callable[[], object]) -> float:
    """Seconds of the fastest of three runs."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def grid() -> None:
    """Time the classical grid."""
    workload = load_workload("lognormal:500:0.8:250:0.8", num_requests=1000)
    server = ServerConfig(model="Qwen/Qwen2.5-14B", max_model_len=32768, max_num_seqs=256, max_num_batched_tokens=8192)
    setup = Setup(server, load_model("qwen2.5-14b"), find_gpu("h200"))
    cells = classical_grid()
    seconds = best_of_three(lambda: tune_simulated(workload, setup, cells))
    requests = len(cells) * workload.num_requests
    print(f"5 x 5 grid x 1,000 requests: {seconds:.2f} s, {requests / seconds:,.0f} requests simulated a second")


def trace(path: str) -> None:
    """Time the open loop with prefix caching."""
    workload = load_workload(path)
    rules = SchedulerRules.of_version(
        "0.26.0", Cell(max_num_seqs=256, max_num_batched_tokens=8192), 33_167, enable_prefix_caching=True
    )
    step_time = shipped_calibrations()[0].step_time
    seconds = best_of_three(lambda: replay_arrivals(workload, rules, step_time))
    print(f"{workload.num_requests:,} requests, open loop, prefix caching: {seconds:.2f} s, ", end="")
    print(f"{workload.num_requests / seconds:,.0f} requests simulated a second")


if __name__ == "__main__":
    grid()
    for argument in sys.argv[1:]:
        trace(argument)
