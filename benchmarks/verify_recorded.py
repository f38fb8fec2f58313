"""What `maitre verify` expects of a turn of the dials, held against recordings of a real vLLM.

    python benchmarks/verify_recorded.py RECORDING.json …

Each pair of recorded cells whose throughput has a steady window is one turn. Of the first cell only what metrics show
is kept: lengths in vLLM's buckets and throughput; its step time is the scaled roofline, as for a model that nobody has
measured. Foretold and recorded ratios of throughput are compared.
"""

from __future__ import annotations

import sys
from itertools import permutations
from pathlib import Path

import numpy as np
from true_servers import bucketed

from maitre.recording import load_recording
from maitre.records import Cell, ServerConfig, Trial
from maitre.trial.recorded import RecordedEngine
from maitre.trial.replay_check import recorded_prior
from maitre.verify.foresight.credibility import ObservedFigures
from maitre.verify.foresight.expectation import expect
from maitre.verify.foresight.observed_traffic import ObservedTraffic
from maitre.verify.foresight.steady_traffic import KnownServer

FURTHEST = 4
"""Each dial is turned by this factor at most."""


def main(paths: list[Path]) -> None:
    """Print a line a recording."""
    for path in paths:
        rows, withheld = [], 0
        engine = RecordedEngine(path)
        measured = {cell: engine.measure(cell) for cell in engine.cells}
        trials = {cell: one.trial for cell, one in measured.items() if one.trial.steady}
        for present, candidate in permutations(trials, 2):
            if not _is_a_turn(present, candidate):
                continue
            found = foretell(path, engine, trials[present], present, candidate)
            if found is None:
                withheld += 1
                continue
            true = _throughput(trials[candidate]) / _throughput(trials[present])
            rows.append((np.log(found[0] / true), found[1] <= true <= found[2]))
        if not rows:
            print(f"{path.stem:36} no two cells with a steady window")
            continue
        off, held = np.abs([row[0] for row in rows]), np.mean([row[1] for row in rows])
        print(f"{path.stem:36} {len(rows):4} turns, {withheld} withheld: throughput ratio off by ", end="")
        print(f"{np.median(off):.1%} (median), {off.max():.1%} (worst); {held:.0%} within the interval")


def foretell(
    path: Path, engine: RecordedEngine, trial: Trial, present: Cell, candidate: Cell
) -> tuple[float, float, float] | None:
    """The ratio of throughput and its interval; None where the simulator is not believed."""
    recording, _ = load_recording(path)
    server = ServerConfig(
        model=recording.model, vllm_version=recording.vllm_version, enable_prefix_caching=False,
        max_model_len=recording.server.max_model_len, block_size=recording.block_size, **present.model_dump(),
    )  # fmt: skip
    known = KnownServer(server, recorded_prior(recording), lambda _: recording.num_gpu_blocks)
    requests = engine.workload
    rate_rps = _throughput(trial) * requests.num_requests / requests.total_tokens
    traffic = ObservedTraffic(
        prompt_lengths=bucketed(requests.prompt_tokens), output_lengths=bucketed(requests.output_tokens),
        arrival_rps=0.0, finished_rps=rate_rps, in_flight_mean=float(present.max_num_seqs),
    )  # fmt: skip
    found = expect(traffic, known, ObservedFigures(), [candidate])
    if found.withheld:
        return None
    change = found.candidates[0].changes["requests_per_s"]
    return change.ratio, change.low, change.high or np.inf


def _is_a_turn(present: Cell, candidate: Cell) -> bool:
    seqs = candidate.max_num_seqs / present.max_num_seqs
    tokens = candidate.max_num_batched_tokens / present.max_num_batched_tokens
    return (seqs == 1) != (tokens == 1) and max(seqs, 1 / seqs, tokens, 1 / tokens) <= FURTHEST


def _throughput(trial: Trial) -> float:
    assert trial.steady is not None
    return trial.steady.total_tokens_per_s


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
