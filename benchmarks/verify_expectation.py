"""What `maitre verify` expects of a turn of the dials, held against what the turn does.

    python benchmarks/verify_expectation.py [NUM_CONDITIONS]

Each condition is a server under traffic that goes on: a model on a GPU whose true step time is a draw from what the
calibration leaves open, requests whose lengths go together, arrivals in bunches or from clients that wait. The server
is simulated at its present cell with the true requests; what is kept of that is what metrics show: lengths in vLLM's
buckets, a rate, means over the window. From these the change to each candidate is foretold; the truth is the same
requests at the candidate. The table has the errors of the foretold ratios and how often their intervals hold the truth.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from true_servers import MAX_MODEL_LEN, TrueServer, observe, truth

from maitre.calibration import calibration_for
from maitre.gpus import find_gpu
from maitre.kv_budget import kv_bytes_per_token
from maitre.models import load_model
from maitre.records import Cell, ServerConfig, Workload
from maitre.verify.foresight.expectation import Expectations, expect
from maitre.verify.foresight.next_cells import Turn, propose_cells
from maitre.verify.foresight.steady_traffic import KnownServer

TRAFFIC = {"chat": (150, 300), "rag": (1500, 200), "coding": (800, 500), "summary": (2500, 400), "batch": (4000, 800)}
"""Median prompt and output tokens of the article's five profiles."""
SIGMA = 0.7
SERVERS = (("qwen2.5-14b", "H200"), ("qwen2.5-7b", "A100-80GB"), ("qwen2.5-7b", "L40S"), ("qwen2.5-32b", "H200"))
FIGURES = (
    "output_tokens_per_s", "itl_mean_s", "itl_p99_s", "ttft_p95_s", "kv_usage", "waiting", "preemptions_per_min",
)  # fmt: skip
CHANCE = 0.01
"""A window's own figures are left to chance by so much: an interval that misses by less holds."""
LEAST = {"waiting": 0.1, "preemptions_per_min": 1.0}
"""Figures below these are as good as 0: nothing is foretold from there, and no less is asked for."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A server in trouble, and the dial that is turned."""

    name: str
    server: TrueServer
    turn: Turn


def known_server(model_name: str, gpu_name: str, cell: Cell, num_gpu_blocks: int) -> KnownServer:
    """A server with what ships for it."""
    model, gpu = load_model(model_name), find_gpu(gpu_name)
    server = ServerConfig(
        model=model_name, max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False, **cell.model_dump()
    )
    calibration = calibration_for(model, gpu, server, kv_bytes_per_token(model, "auto", 1, "auto"))
    return KnownServer(server, calibration, lambda _: num_gpu_blocks)


def correlated_requests(
    name: str, num_requests: int, correlation: float, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Log-normal lengths that go together."""
    normal = generator.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], num_requests)
    prompt, output = (
        np.maximum(1, np.rint(m * np.exp(SIGMA * z))) for m, z in zip(TRAFFIC[name], normal.T, strict=True)
    )
    prompt = np.minimum(prompt, MAX_MODEL_LEN // 2).astype(np.int64)
    return prompt, np.minimum(output, MAX_MODEL_LEN // 4).astype(np.int64)


KINDS = ("slots", "slots-closed", "pool", "pool-closed", "budget", "calm", "long-steps", "overload")
LOAD = {"calm": 0.5, "long-steps": 0.6, "overload": 1.3, "budget": 0.85}
"""Arrivals over what the present cell can serve; 0.95 elsewhere."""
TURNS: dict[str, Turn] = {
    "pool": "lower-max-num-seqs",
    "pool-closed": "lower-max-num-seqs",
    "budget": "raise-token-budget",
    "long-steps": "lower-token-budget",
}
"""More slots elsewhere."""


def make_condition(number: int) -> Condition:
    """One of them; the same number is always the same condition."""
    generator = np.random.default_rng(number)
    kind, names = KINDS[number % len(KINDS)], SERVERS[number // len(KINDS) % len(SERVERS)]
    traffic = list(TRAFFIC)[int(generator.integers(len(TRAFFIC)))]
    prompt, output = correlated_requests(traffic, 3000, float(generator.uniform(-0.3, 0.6)), generator)
    requests = Workload(name=traffic, source="drawn", prompt_tokens=prompt, output_tokens=output)
    seqs, tokens = int(generator.choice([16, 32, 64])), int(generator.choice([2048, 4096, 8192]))
    tokens = {"budget": 2 * seqs + 128, "long-steps": 8192}.get(kind, tokens)
    fit = float(generator.uniform(0.5, 0.75)) if kind.startswith("pool") else 8.0  # slots that the pool holds, a slot
    footprint = float(np.average(prompt + output / 2, weights=output))
    blocks = int(max(fit * seqs * footprint, 1.2 * (prompt + output).max()) / 16)
    known = known_server(*names, Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens), blocks)
    theta = known.calibration.draw_coefficients(1, generator)[0]
    server = TrueServer(known, theta, requests, 2 * seqs)
    if not kind.endswith("closed"):
        bunches = float(generator.choice([1.0, 1.0, 0.5]))  # shape of the gamma distribution: 1 is Poisson
        server = _with_arrivals(server, LOAD.get(kind, 0.95), bunches, generator)
    name = f"{kind} {traffic} {'/'.join(names)} {known.server.cell}"
    return Condition(name, server, TURNS.get(kind, "raise-max-num-seqs"))


def _with_arrivals(full: TrueServer, load: float, bunches: float, generator: np.random.Generator) -> TrueServer:
    """The same requests by themselves, at a share of what the server does when somebody always waits."""
    seen = truth(full, full.known.server.cell)
    capacity_rps = seen.finished.sum() / (seen.end_s - seen.begin_s)
    gaps_s = generator.gamma(bunches, 1 / bunches, full.requests.num_requests)
    arrival_s = np.cumsum(gaps_s) / gaps_s.mean() / (load * capacity_rps)
    requests = full.requests.model_copy(update={"arrival_s": arrival_s})
    return TrueServer(full.known, full.coefficients, requests, None)


def errors(server: TrueServer, found: Expectations) -> Iterator[tuple[str, float, bool]]:
    """For each figure and candidate: log of foretold over true ratio, and whether the interval holds the true one."""
    present = server.known.server.cell
    now = truth(server, present).figures(server.rules(present).num_usable_blocks)
    for one in found.candidates:
        then = truth(server, one.cell).figures(server.rules(one.cell).num_usable_blocks)
        for name in FIGURES:
            change, least = one.changes.get(name), LEAST.get(name, 0.0)
            if change is None or now[name] <= least:
                continue
            true, told = (max(value, least) / now[name] for value in (then[name], change.ratio * now[name]))
            high = np.inf if change.high is None else change.high
            yield name, float(np.log(told / true)), bool(change.low - CHANCE <= true <= high + CHANCE)


def main(num_conditions: int) -> None:
    """Print a line a condition, and the table."""
    rows: list[tuple[str, float, bool]] = []
    seconds, withheld = [], 0
    for number in range(num_conditions):
        condition = make_condition(number)
        server = condition.server
        traffic, observed = observe(server)
        start = time.process_time()
        found = expect(traffic, server.known, observed, propose_cells(server.known.server.cell, condition.turn))
        seconds.append(time.process_time() - start)
        withheld += bool(found.withheld)
        here = list(errors(server, found))
        rows += here
        name, worst, _ = max(here, key=lambda row: abs(row[1]), default=("", 0.0, True))
        scale = f"scale {found.credibility.scale:.2f}"
        print(f"{number:3} {condition.name:48} {traffic.loop:7} {scale} worst {name} {worst:+.2f} {found.withheld}")
    print(f"\n{num_conditions} conditions, {withheld} withheld; ", end="")
    print(f"CPU {np.median(seconds):.2f} s, {max(seconds):.2f} s at most")
    _print_table(rows)


def _print_table(rows: list[tuple[str, float, bool]]) -> None:
    print(f"{'ratio of':22} {'median':>8} {'p90':>8} {'worst':>8} {'in interval':>12} {'n':>5}")
    for name in FIGURES:
        off = np.array([abs(error) for figure, error, _ in rows if figure == name])
        if len(off):
            share = np.mean([holds for figure, _, holds in rows if figure == name])
            p50, p90, most = 100 * np.expm1([np.median(off), np.percentile(off, 90), off.max()])
            print(f"{name:22} {p50:7.1f}% {p90:7.1f}% {most:7.1f}% {share:11.0%} {len(off):5}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 48)
